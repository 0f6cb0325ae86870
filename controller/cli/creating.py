"""`mlxctl create key`: makes a secret, shows it once, stores its hash.

The secret is printed to stdout alone, so that a script can catch it; everything else goes to
stderr. It is made here, so no server ever sees it before a client uses it.
"""

import secrets
from typing import Annotated, Any

import typer

from controller.cli.context import client_of
from controller.cli.exits import CliError, Exit
from controller.cli.output import note, say
from controller.cli.writing import FIELD_MANAGER
from manifests.kinds.api_key import (
    HIGHEST_PRIORITY,
    KEY_START,
    LOWEST_PRIORITY,
    PREFIX_CHARS,
    hash_secret,
)
from manifests.kinds.meta import API_VERSION
from manifests.reading.validate import validate_object

_SECRET_BYTES = 32

create = typer.Typer(
    name="create", help="Make what no file can declare: API keys.", no_args_is_help=True
)


@create.callback()
def create_group() -> None:
    """Make what no file can declare: API keys."""


@create.command("key")
def create_key(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    models: Annotated[
        str, typer.Option("--models", help="names it may use, comma-separated; * and ? match")
    ] = "",
    rpm: Annotated[int | None, typer.Option("--rpm", min=1, help="requests per minute")] = None,
    tpm: Annotated[int | None, typer.Option("--tpm", min=1, help="tokens per minute")] = None,
    priority: Annotated[
        int,
        typer.Option(
            "--priority", min=LOWEST_PRIORITY, max=HIGHEST_PRIORITY, help="higher goes first"
        ),
    ] = 0,
) -> None:
    """Make an API key: its secret is shown here, once, and stored nowhere."""
    limits = {"requestsPerMinute": rpm, "tokensPerMinute": tpm}
    secret = KEY_START + secrets.token_urlsafe(_SECRET_BYTES)
    spec = {
        "models": [item.strip() for item in models.split(",") if item.strip()],
        "priority": priority,
        "limits": {key: value for key, value in limits.items() if value is not None},
    }
    obj = key_object(name, secret, spec)
    faults = validate_object(obj)
    if faults:
        raise CliError("; ".join(str(fault) for fault in faults), code=Exit.USAGE)
    client = client_of(ctx)
    params = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
    client.request("POST", client.path("apikeys"), params=params, body=obj)
    note(f"apikey/{name} created. This is its secret; it is shown only now:")
    say(secret)


def key_object(name: str, secret: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Return the ApiKey of a secret, without the secret. Pure."""
    return {
        "apiVersion": API_VERSION,
        "kind": "ApiKey",
        "metadata": {"name": name},
        "spec": {"hash": hash_secret(secret), "prefix": secret[:PREFIX_CHARS], **spec},
    }
