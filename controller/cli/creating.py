"""`mlxctl create key`: makes a secret, shows it once, stores its hash.

The secret is printed to stdout alone, so that a script can catch it; everything else goes to
stderr. It is made here, so no server ever sees it before a client uses it.
"""

import secrets
import time
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from controller.cli.context import client_of
from controller.cli.exits import CliError, Exit
from controller.cli.flags import with_flags
from controller.cli.output import note, say
from controller.cli.writing import FIELD_MANAGER
from manifests.kinds.api_key import (
    HIGHEST_PRIORITY,
    KEY_START,
    LOWEST_PRIORITY,
    PREFIX_CHARS,
    Period,
    hash_secret,
)
from manifests.kinds.meta import API_VERSION
from manifests.reading.validate import validate_object
from manifests.times import format_time, parse_time
from manifests.units import parse_duration, parse_quantity

_SECRET_BYTES = 32
_BUDGET_HELP = "tokens in all a day, week or month (default), such as 2M/day"
_EXPIRES_HELP = "refused from then on: an RFC 3339 time, or from now, such as 30d"

create = typer.Typer(
    name="create", help="Make what no file can declare: API keys.", no_args_is_help=True
)


@create.callback()
def create_group() -> None:
    """Make what no file can declare: API keys."""


@dataclass(frozen=True, slots=True)
class KeyFlags:
    """What `mlxctl create key` declares of a key; None and the empty text leave a field out."""

    models: Annotated[
        str, typer.Option("--models", help="names it may use, comma-separated; * and ? match")
    ] = ""
    rpm: Annotated[int | None, typer.Option("--rpm", min=1, help="requests per minute")] = None
    tpm: Annotated[int | None, typer.Option("--tpm", min=1, help="tokens per minute")] = None
    concurrent: Annotated[
        int | None, typer.Option("--concurrent", min=1, help="requests at the same time")
    ] = None
    budget: Annotated[
        str, typer.Option("--budget", metavar="TOKENS[/PERIOD]", help=_BUDGET_HELP)
    ] = ""
    expires: Annotated[
        str, typer.Option("--expires", metavar="TIME|DURATION", help=_EXPIRES_HELP)
    ] = ""
    priority: Annotated[
        int,
        typer.Option(
            "--priority", min=LOWEST_PRIORITY, max=HIGHEST_PRIORITY, help="higher goes first"
        ),
    ] = 0

    def spec(self, now: float) -> dict[str, Any]:
        """Return the fields of the spec, but those of the secret. Pure.

        Units: `now` in epoch seconds. Raises: CliError.
        """
        limits = {
            "requestsPerMinute": self.rpm,
            "tokensPerMinute": self.tpm,
            "concurrentRequests": self.concurrent,
        }
        spec: dict[str, Any] = {
            "models": [item.strip() for item in self.models.split(",") if item.strip()],
            "priority": self.priority,
            "limits": {key: value for key, value in limits.items() if value is not None},
        }
        if self.budget:
            spec["budget"] = parse_budget(self.budget)
        if self.expires:
            spec["expires"] = parse_expiry(self.expires, now)
        return spec


@create.command("key")
@with_flags(KeyFlags)
def create_key(
    ctx: typer.Context, name: Annotated[str, typer.Argument(metavar="NAME")], flags: KeyFlags
) -> None:
    """Make an API key: its secret is shown here, once, and stored nowhere."""
    secret = KEY_START + secrets.token_urlsafe(_SECRET_BYTES)
    obj = key_object(name, secret, flags.spec(time.time()))
    faults = validate_object(obj)
    if faults:
        raise CliError("; ".join(str(fault) for fault in faults), code=Exit.USAGE)
    client = client_of(ctx)
    params = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
    client.request("POST", client.path("apikeys"), params=params, body=obj)
    note(f"apikey/{name} created. This is its secret; it is shown only now:")
    say(secret)


def parse_budget(text: str) -> dict[str, Any]:
    """Return the budget that a flag names. Pure. Raises: CliError."""
    count, has_period, period = text.strip().partition("/")
    try:
        tokens = parse_quantity(count)
    except ValueError:
        tokens = 0
    if not tokens or (has_period and period not in set(Period)):
        raise CliError(
            f"--budget {text!r} is not understood",
            hint=f"write TOKENS or TOKENS/PERIOD, such as 500000 or 2M/day; a period is "
            f"{', '.join(Period)}",
            code=Exit.USAGE,
        )
    return {"tokens": tokens, "period": period or Period.MONTH.value}


def parse_expiry(text: str, now: float) -> str:
    """Return the time that a flag names, as the object has it. Pure. Raises: CliError.

    Units: `now` in epoch seconds, from which a duration counts.
    """
    moment = parse_time(text) if "T" in text else None
    if moment is None:
        try:
            return format_time(now + parse_duration(text))
        except ValueError:
            pass
    if moment is None or moment <= now:
        fault = "is not understood" if moment is None else "is over already"
        raise CliError(
            f"--expires {text!r} {fault}",
            hint="write a time that is to come, such as 2030-01-31T00:00:00Z, or how long from "
            "now, such as 30d or 12h",
            code=Exit.USAGE,
        )
    return text


def key_object(name: str, secret: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Return the ApiKey of a secret, without the secret. Pure."""
    return {
        "apiVersion": API_VERSION,
        "kind": "ApiKey",
        "metadata": {"name": name},
        "spec": {"hash": hash_secret(secret), "prefix": secret[:PREFIX_CHARS], **spec},
    }
