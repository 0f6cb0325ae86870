"""The commands that read: get, describe, logs, plan, version."""

import json
from typing import Annotated

import typer

from controller.cli.client import TABLE_ACCEPT, ApiClient
from controller.cli.context import client_of
from controller.cli.describe import describe_lines, is_about
from controller.cli.exits import CliError, Exit
from controller.cli.output import OutputFormat, note, say, show_objects, table_lines
from controller.cli.plan_view import plan_lines
from controller.cli.targets import Target, parse_targets
from controller.cli.version import client_version
from manifests.kinds.scheme import BY_NAME, dump_object
from manifests.reading.load import load_paths
from manifests.wire.plan import PLAN_PATH, PlanReport

Output = Annotated[OutputFormat, typer.Option("-o", "--output", help="how to print")]
Words = Annotated[list[str], typer.Argument(metavar="KIND [NAME...] | KIND/NAME...")]


def get(
    ctx: typer.Context,
    words: Words,
    output: Output = OutputFormat.TABLE,
    selector: Annotated[str, typer.Option("-l", "--selector", help="labels, as a=b,c!=d")] = "",
    watch: Annotated[bool, typer.Option("-w", "--watch", help="go on printing changes")] = False,
) -> None:
    """List objects, or show some by name."""
    client = client_of(ctx)
    targets = parse_targets(words)
    if output in {OutputFormat.TABLE, OutputFormat.WIDE}:
        wide = output is OutputFormat.WIDE
        shown = _show_tables(client, targets, selector, wide=wide)
        if not shown and not watch:
            note("nothing found")
    else:
        _show_raw(client, targets, selector, output)
    if watch:
        _follow(client, targets, output)


def _show_tables(
    client: ApiClient, targets: tuple[Target, ...], selector: str, *, wide: bool
) -> bool:
    """Print one table a kind; whether there was a row."""
    several = len({target.kind.plural for target in targets}) > 1
    blocks: dict[str, dict[str, object]] = {}
    rows: dict[str, list[object]] = {}
    for target in targets:
        params = {} if target.name or not selector else {"labelSelector": selector}
        path = client.path(target.kind.plural, target.name or "")
        table = client.request("GET", path, params=params, headers={"Accept": TABLE_ACCEPT})
        blocks.setdefault(target.kind.plural, table)
        rows.setdefault(target.kind.plural, []).extend(table.get("rows") or [])
    printed = False
    for plural, table in blocks.items():
        if not rows[plural]:
            continue
        if printed:
            say()
        kind = next(target.kind for target in targets if target.kind.plural == plural)
        prefix = f"{kind.singular}/" if several else ""
        for line in table_lines({**table, "rows": rows[plural]}, wide=wide, prefix=prefix):
            say(line)
        printed = True
    return printed


def _show_raw(
    client: ApiClient, targets: tuple[Target, ...], selector: str, fmt: OutputFormat
) -> None:
    objects, kinds = [], []
    for target in targets:
        if target.name:
            found = [client.get(target.kind.plural, target.name)]
        else:
            found = client.list(target.kind.plural, selector=selector)["items"]
        objects += found
        kinds += [target.kind] * len(found)
    show_objects(objects, kinds, fmt, single=len(targets) == 1 and targets[0].name is not None)


def _follow(client: ApiClient, targets: tuple[Target, ...], fmt: OutputFormat) -> None:
    if len({target.kind.plural for target in targets}) > 1:
        raise CliError("watch one kind at a time", code=Exit.USAGE)
    kind = targets[0].kind
    names = {target.name for target in targets if target.name}
    version = client.list(kind.plural)["metadata"]["resourceVersion"]
    for line in client.watch(kind.plural, version=version):
        name = line.object.get("metadata", {}).get("name")
        if line.type in {"BOOKMARK", "ERROR"} or (names and name not in names):
            continue
        if fmt is OutputFormat.JSON:
            say(json.dumps({"type": line.type, "object": line.object}))
            continue
        status = line.object.get("status", {})
        words = [status.get("phase") or _ready_word(status), status.get("message", "")]
        say(f"{line.type.lower():9} {kind.singular}/{name}   {'   '.join(w for w in words if w)}")


def _ready_word(status: dict[str, object]) -> str:
    conditions = status.get("conditions")
    for item in conditions if isinstance(conditions, list) else []:
        if item.get("type") == "Ready":
            return f"Ready={item.get('status')} {item.get('reason', '')}".strip()
    return ""


def describe(ctx: typer.Context, words: Words) -> None:
    """Show everything about objects, with their events."""
    client = client_of(ctx)
    first = True
    for target in parse_targets(words):
        plural = target.kind.plural
        found = [client.get(plural, target.name)] if target.name else None
        objects = client.list(plural)["items"] if found is None else found
        for obj in objects:
            if not first:
                say("\n")
            first = False
            uid = obj["metadata"].get("uid", "")
            fields = "" if plural == "nodes" else f"involvedObject.uid={uid}"
            events = client.list("events", fields=fields)["items"]
            if plural == "nodes":
                # What an agent did to engines is news of its node.
                host = obj["metadata"]["name"]
                events = [item for item in events if is_about(item, uid, host)]
            related = []
            if plural in {"models", "nodes"}:
                field = "spec.model" if plural == "models" else "spec.node"
                name = obj["metadata"]["name"]
                related = client.list("engines", fields=f"{field}={name}")["items"]
            for line in describe_lines(obj, events, related):
                say(line)


def logs(
    ctx: typer.Context,
    engine: Annotated[str, typer.Argument(help="an engine, as `mlxctl get engines` names it")],
    follow: Annotated[bool, typer.Option("-f", "--follow", help="go on as it grows")] = False,
    tail: Annotated[int, typer.Option("--tail", min=0, help="last lines only; 0 shows all")] = 0,
) -> None:
    """Print what an engine wrote."""
    client = client_of(ctx)
    name = engine.removeprefix("engine/").removeprefix("engines/")
    params = {"follow": "true" if follow else "false"}
    if tail:
        params["tailLines"] = str(tail)
    path = client.path("engines", name, "log")
    with client.stream("GET", path, params=params) as answer:
        client.raise_for_status(answer)
        for line in answer.iter_lines():
            say(line)


def plan(
    ctx: typer.Context,
    files: Annotated[list[str], typer.Option("-f", "--filename", help="file, directory or -")],
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show which node would take which model, and why not."""
    client = client_of(ctx)
    loaded = load_paths(files)
    if loaded.errors:
        for error in loaded.errors:
            note(error.render())
        raise CliError(f"{len(loaded.errors)} errors; nothing was planned")
    models = [item.obj for item in loaded.objects if item.obj.kind == BY_NAME["Model"].name]
    if not models:
        raise CliError("no Model in these files; plan places models")
    body = {"items": [dump_object(model) for model in models]}
    answer = client.request("POST", PLAN_PATH, body=body)
    if output is OutputFormat.JSON:
        say(json.dumps(answer, indent=2))
        return
    report = PlanReport.model_validate(answer)
    for line in plan_lines(report, wide=output is OutputFormat.WIDE):
        say(line)
    if any(item.placed < item.replicas for item in report.models):
        raise CliError("not every copy finds a node", code=Exit.FAILED)


def version(ctx: typer.Context, output: Output = OutputFormat.TABLE) -> None:
    """Print the versions of this command and the server."""
    mine = client_version()
    client = client_of(ctx)
    try:
        theirs = client.request("GET", "/version")["gitVersion"]
    except CliError:
        theirs = f"unreachable ({client.server})"
        if output is OutputFormat.JSON:
            say(json.dumps({"client": mine, "server": None}))
            raise
    if output is OutputFormat.JSON:
        say(json.dumps({"client": mine, "server": theirs}))
    else:
        say(f"client: {mine}")
        say(f"server: {theirs}")
