"""What every command gets from the global options."""

from dataclasses import dataclass

import typer

from controller.cli.client import ApiClient


@dataclass(slots=True)
class Session:
    """The server to call; the client is made at first use and closed with the command."""

    server: str
    api_key: str = ""
    client: ApiClient | None = None


def client_of(ctx: typer.Context) -> ApiClient:
    """Return the command's client."""
    session = ctx.find_object(Session)
    if session is None:
        raise RuntimeError("the root command makes the session")
    if session.client is None:
        session.client = ApiClient(session.server, session.api_key)
        ctx.call_on_close(session.client.close)
    return session.client
