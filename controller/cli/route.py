"""The commands about routing: route explain."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from controller.cli.context import client_of
from controller.cli.exits import CliError, Exit
from controller.cli.output import OutputFormat, say
from controller.cli.route_view import explanation_lines
from manifests.wire.explain import EXPLAIN_PATH, RouteExplanation

route = typer.Typer(name="route", help="Ask how requests find their node.", no_args_is_help=True)


@route.command()
def explain(
    ctx: typer.Context,
    file: Annotated[
        str, typer.Option("-f", "--filename", help="an OpenAI request as JSON; - reads stdin")
    ],
    output: Annotated[
        OutputFormat, typer.Option("-o", "--output", help="table, wide or json")
    ] = OutputFormat.TABLE,
) -> None:
    """Show where a request would go now and why; nothing is sent to a node."""
    body = _read_request(file)
    answer = client_of(ctx).request("POST", EXPLAIN_PATH, body=body)
    if output is OutputFormat.JSON:
        say(json.dumps(answer, indent=2))
        return
    if output not in {OutputFormat.TABLE, OutputFormat.WIDE}:
        raise CliError(f"-o {output.value} is not for explanations; use json", code=Exit.USAGE)
    for line in explanation_lines(
        RouteExplanation.model_validate(answer), wide=output is OutputFormat.WIDE
    ):
        say(line)


def _read_request(file: str) -> Any:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        raise CliError(f"cannot read {file}: {fault}", code=Exit.USAGE) from fault
    try:
        return json.loads(text)
    except ValueError as fault:
        raise CliError(
            f"{file} is not JSON: {fault}",
            hint='It must be an OpenAI request, such as {"model": "m", "messages": [...]}.',
            code=Exit.USAGE,
        ) from fault
