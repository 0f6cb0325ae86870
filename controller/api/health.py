"""`/healthz` and `/readyz`: whether the process lives, and whether it can do its work.

Open to everybody and cheap. Called by supervisors, load balancers and `mlxctl`.
"""

from collections.abc import Awaitable, Callable, Mapping

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

Check = Callable[[], Awaitable[str]]
"""Returns what is missing, or the empty text."""


class Health:
    """Answers for the whole process; `draining` turns readiness off first."""

    def __init__(self, checks: Mapping[str, Check]) -> None:
        self._checks = checks
        self.draining = False

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [
            Route("/healthz", self._healthz, methods=["GET"]),
            Route("/livez", self._healthz, methods=["GET"]),
            Route("/readyz", self._readyz, methods=["GET"]),
        ]

    async def _healthz(self, _request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def _readyz(self, _request: Request) -> Response:
        lines, ready = [], not self.draining
        for name, check in self._checks.items():
            problem = await check()
            ready = ready and not problem
            lines.append(f"[-] {name}: {problem}" if problem else f"[+] {name}: ok")
        if self.draining:
            lines.append("[-] shutting down")
        headers = {} if ready else {"Retry-After": "1"}
        text = "\n".join(lines) + "\n"
        return PlainTextResponse(text, status_code=200 if ready else 503, headers=headers)
