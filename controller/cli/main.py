"""mlxctl: assembles the commands and turns every outcome into an exit code.

Data goes to stdout, everything else to stderr. Exit codes are in `controller.cli.exits`.
"""

import os
import sys
from typing import Annotated

import typer

from controller.cli.chat import chat
from controller.cli.client import DEFAULT_SERVER, api_failure
from controller.cli.context import Session
from controller.cli.creating import create
from controller.cli.exits import CliError, Exit
from controller.cli.output import show_error
from controller.cli.reading import describe, get, logs, plan, version
from controller.cli.route import route
from controller.cli.up import PASS_ON, agent, controller, up
from controller.cli.writing import apply, delete, wait
from manifests.wire.status import ApiError

_EPILOG = (
    "Exit codes: 0 done, 1 failed, 2 usage, 3 not found, 4 conflict, 5 unreachable, "
    "6 timed out, 7 refused, 130 interrupted."
)

app = typer.Typer(
    name="mlxctl",
    help="Serve MLX models on a fleet of Macs: declare, apply, talk.",
    epilog=_EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def root(
    ctx: typer.Context,
    server: Annotated[
        str, typer.Option("--server", envvar="MLXCTL_SERVER", help="URL of the controller")
    ] = DEFAULT_SERVER,
    api_key: Annotated[
        str, typer.Option("--api-key", envvar="MLXCTL_API_KEY", help="sent by chat, if it is asked")
    ] = "",
) -> None:
    """Serve MLX models on a fleet of Macs: declare, apply, talk."""
    ctx.obj = Session(server if "://" in server else f"http://{server}", api_key)


for command in (up, apply, get, describe, wait, chat, plan, logs, delete, version):
    app.command()(command)
app.add_typer(route)
for passing in (controller, agent):
    app.command(context_settings=PASS_ON, add_help_option=False)(passing)
app.add_typer(create)


def main() -> None:
    """Run the command line and exit with its code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    try:
        app(arguments)
    except SystemExit as end:
        # typer has shown its own usage errors by then.
        return end.code if isinstance(end.code, int) else Exit.OK
    except CliError as error:
        show_error(error)
        return error.code
    except ApiError as error:
        show_error(api_failure(error))
        return api_failure(error).code
    except BrokenPipeError:
        # The reader left, as `head` does; a second error at interpreter exit helps nobody.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return Exit.OK
