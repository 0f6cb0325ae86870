"""How a handler is called: a function of the request whose answer may be a stream of ours."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from controller.api.requests import refuse_impersonation
from controller.api.streams import PieceStream

Answer = Response | PieceStream
Handle = Callable[[Request], Awaitable[Answer]]


class Endpoint:
    """An ASGI endpoint over a handler."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope, receive, send)
        refuse_impersonation(request.headers)
        answered = await self._handle(request)
        await answered(scope, receive, send)
