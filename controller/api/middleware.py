"""ASGI middleware of the API: one form of every path, and a log line for every write."""

import time
from collections.abc import Callable

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_LOG = structlog.get_logger(__name__)
_WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_AUDITED = ("/apis/", "/fleet/")


class SameWithoutSlash:
    """Serves `/apis/` as `/apis`; both Python clients ask for the first."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its path in the short form."""
        if scope["type"] == "http" and len(scope["path"]) > 1 and scope["path"].endswith("/"):
            scope = {**scope, "path": scope["path"].rstrip("/") or "/"}
        await self._app(scope, receive, send)


class AuditLog:
    """Logs who changed what through the API, and how it ended; never the body."""

    def __init__(self, app: ASGIApp, clock: Callable[[], float] = time.monotonic) -> None:
        self._app, self._clock = app, clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on and log it when it was a write."""
        audited = (
            scope["type"] == "http"
            and scope["method"] in _WRITES
            and scope["path"].startswith(_AUDITED)
        )
        if not audited:
            await self._app(scope, receive, send)
            return
        started, status = self._clock(), 0

        async def note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, note)
        finally:
            headers = dict(scope["headers"])
            level = _LOG.debug if scope["path"].endswith("/status") else _LOG.info
            level(
                "api write",
                method=scope["method"],
                path=scope["path"],
                status=status,
                milliseconds=round((self._clock() - started) * 1000, 1),
                client=(scope.get("client") or ("",))[0],
                agent=headers.get(b"user-agent", b"").decode("latin-1")[:100],
            )
