"""The commands that write: apply, delete, wait."""

import copy
import json
import sys
import time
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from controller.cli.client import ApiClient, api_failure
from controller.cli.context import client_of
from controller.cli.exits import CliError, Exit
from controller.cli.output import note, say
from controller.cli.targets import Target, parse_targets, reference
from controller.cli.waiting import Goal, parse_goal, wait_for
from manifests.kinds.scheme import BY_NAME, Kind
from manifests.reading.load import LoadResult, load_paths
from manifests.reading.merge import LAST_APPLIED, plan_three_way_patch
from manifests.units import parse_duration
from manifests.wire.status import ApiError

FIELD_MANAGER = "mlxctl"
_MERGE = {"Content-Type": "application/merge-patch+json"}

Files = Annotated[list[str], typer.Option("-f", "--filename", help="file, directory or -")]


def load_or_fail(files: list[str]) -> LoadResult:
    """Return what the files declare. Raises CliError after printing every error of every file."""
    loaded = load_paths(files)
    if loaded.errors:
        for error in loaded.errors:
            note(error.render())
        count = len(loaded.errors)
        raise CliError(f"{count} error{'s' if count > 1 else ''}; nothing was applied")
    if not loaded.objects:
        raise CliError("there is no object in these files")
    return loaded


def with_last_applied(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the object carrying itself as the last applied configuration. Pure."""
    desired = copy.deepcopy(raw)
    annotations = desired.setdefault("metadata", {}).setdefault("annotations", {})
    annotations.pop(LAST_APPLIED, None)
    text = json.dumps(desired, separators=(",", ":"), sort_keys=True) + "\n"
    annotations[LAST_APPLIED] = text
    return desired


def plan_apply(live: dict[str, Any], desired: dict[str, Any]) -> dict[str, Any]:
    """Return the merge patch from a live object to what the user declares; {} changes nothing."""
    annotations = (live.get("metadata") or {}).get("annotations") or {}
    try:
        last = json.loads(annotations.get(LAST_APPLIED, "{}"))
    except ValueError:
        last = {}
    return plan_three_way_patch(last, live, desired)


def apply(
    ctx: typer.Context,
    files: Files,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="ask the server, store nothing")
    ] = False,
) -> None:
    """Apply manifests; nothing is applied when one has an error."""
    client = client_of(ctx)
    loaded = load_or_fail(files)
    # The server judges every object before the first write, so one bad object of five stops all.
    faults = []
    for item in loaded.objects:
        try:
            _apply_one(client, item.raw, dry_run=True)
        except ApiError as error:
            faults.append(f"{item.where} {error.message}")
    if faults:
        for fault in faults:
            note(fault)
        raise CliError("nothing was applied")
    done: list[str] = []
    for index, item in enumerate(loaded.objects):
        kind = BY_NAME[item.raw["kind"]]
        name = reference(kind, item.raw["metadata"]["name"])
        try:
            verb = _apply_one(client, item.raw, dry_run=dry_run)
        except (ApiError, CliError) as error:
            left = len(loaded.objects) - index - 1
            failed = api_failure(error) if isinstance(error, ApiError) else error
            raise CliError(
                f"{name}: {failed.message}",
                hint=f"{len(done)} applied, 1 failed, {left} not tried; apply again is safe",
                code=failed.code,
            ) from error
        done.append(name)
        say(f"{name} {verb}{' (dry run)' if dry_run else ''}")


def _apply_one(client: ApiClient, raw: dict[str, Any], *, dry_run: bool) -> str:
    """Create or patch one object; what happened in one word."""
    kind, name = BY_NAME[raw["kind"]], raw["metadata"]["name"]
    params = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
    if dry_run:
        params["dryRun"] = "All"
    desired = with_last_applied(raw)
    live = client.find(kind.plural, name)
    if live is None:
        client.request("POST", client.path(kind.plural), params=params, body=desired)
        return "created"
    patch = plan_apply(live, desired)
    if not patch:
        return "unchanged"
    path = client.path(kind.plural, name)
    answer = client.request("PATCH", path, params=params, body=patch, headers=_MERGE)
    same = answer["metadata"].get("resourceVersion") == live["metadata"].get("resourceVersion")
    return "unchanged" if same and not dry_run else "configured"


def delete(
    ctx: typer.Context,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[KIND NAME... | KIND/NAME...]")
    ] = None,
    files: Annotated[
        list[str] | None, typer.Option("-f", "--filename", help="file, directory or -")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="every object of the kind")] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="until they are gone")] = True,
    timeout: Annotated[str, typer.Option("--timeout", help="how long to wait")] = "120s",
) -> None:
    """Delete objects, and wait until they are gone."""
    client = client_of(ctx)
    targets = _targets_to_delete(client, words or [], files or [], everything=everything)
    missing: list[CliError] = []
    for target in targets:
        name = reference(target.kind, target.name or "")
        try:
            path = client.path(target.kind.plural, target.name or "")
            client.request("DELETE", path, body={"propagationPolicy": "Background"})
            say(f"{name} deleted")
        except ApiError as error:
            missing.append(api_failure(error))
            note(f"{name}: {error.message}")
    if wait:
        deadline = time.monotonic() + parse_duration(timeout)
        for target in targets:
            wait_for(client, target, Goal("delete", ""), deadline)
    if missing:
        raise CliError(f"{len(missing)} of {len(targets)} were not deleted", code=missing[0].code)


def _targets_to_delete(
    client: ApiClient, words: list[str], files: list[str], *, everything: bool
) -> tuple[Target, ...]:
    if bool(words) == bool(files):
        raise CliError("name what to delete, or give files with -f", code=Exit.USAGE)
    if files:
        loaded = load_or_fail(files)
        # Later documents lean on earlier ones, so they go first.
        return tuple(
            Target(BY_NAME[item.raw["kind"]], item.raw["metadata"]["name"])
            for item in reversed(loaded.objects)
        )
    targets = parse_targets(words)
    if all(target.name for target in targets):
        return targets
    if not everything:
        raise CliError("name the objects, or say --all", code=Exit.USAGE)
    return tuple(_all_of(client, (target.kind for target in targets)))


def _all_of(client: ApiClient, kinds: Iterable[Kind]) -> Iterable[Target]:
    for kind in kinds:
        for item in client.list(kind.plural)["items"]:
            yield Target(kind, item["metadata"]["name"])


def wait(
    ctx: typer.Context,
    words: Annotated[list[str], typer.Argument(metavar="KIND NAME... | KIND/NAME...")],
    goal: Annotated[
        str, typer.Option("--for", help="condition=Ready, condition=Ready=False, create or delete")
    ] = "condition=Ready",
    timeout: Annotated[str, typer.Option("--timeout", help="how long to wait in all")] = "60s",
    everything: Annotated[bool, typer.Option("--all", help="every object of the kind")] = False,
) -> None:
    """Wait for a condition; exit code 6 when time runs out."""
    client = client_of(ctx)
    wanted = parse_goal(goal)
    try:
        deadline = time.monotonic() + parse_duration(timeout)
    except ValueError as fault:
        raise CliError(f"--timeout: {fault}", code=Exit.USAGE) from fault
    targets = parse_targets(words)
    if not all(target.name for target in targets):
        if not everything:
            raise CliError("name the objects to wait for, or say --all", code=Exit.USAGE)
        targets = tuple(_all_of(client, (target.kind for target in targets)))
    for target in targets:
        wait_for(client, target, wanted, deadline, show_progress=sys.stderr.isatty())
        say(f"{reference(target.kind, target.name or '')} {wanted.done_text}")
