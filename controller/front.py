"""The shortest way in for what is asked most: some paths go to their application directly.

Knows paths only. Everything else, and every other spelling of those paths, takes the way through
the routes. Called by `controller/app.py`.
"""

from collections.abc import Mapping

from starlette.types import ASGIApp, Receive, Scope, Send


class Front:
    """One ASGI application over two: `direct` by exact path, and `rest`.

    What is direct answers every fault itself; no middleware sees its requests.
    """

    def __init__(self, direct: Mapping[str, ASGIApp], rest: ASGIApp) -> None:
        self._direct, self._rest = dict(direct), rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        app = self._direct.get(scope["path"], self._rest)
        await app(scope, receive, send)
