"""Raw ASGI in and out: reading a bounded body, noticing that the client left, answering.

Knows HTTP and the OpenAI error form, nothing of fleets. Called by the handlers and the proxy.
"""

import asyncio
import json
import os
import re
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.types import Message, Receive, Scope, Send

from controller.gateway.http.peek import refuse_oversize
from controller.gateway.http.sse import Usage, error_event
from manifests.errors import Code, Refusal
from manifests.wire.error_body import openai_error, openai_headers

RawHeader = tuple[bytes, bytes]

_REQUEST_ID = re.compile(rb"^[A-Za-z0-9._:-]{1,128}$")
ROUTE_HEADER = b"x-mlxfleet-route"

_JSON = (b"content-type", b"application/json")
_WATCH_AFTER_SECONDS = 0.01


_Result = TypeVar("_Result")


class ClientLeftError(Exception):
    """The client closed its connection before it had its answer."""


@dataclass(frozen=True, slots=True)
class Inbound:
    """One request as it came."""

    method: str
    path: str
    headers: Sequence[RawHeader]
    request_id: str
    receive: Receive = field(repr=False)

    @classmethod
    def from_scope(cls, scope: Scope, receive: Receive) -> "Inbound":
        """Take a request over from the server, with the client's request id or a new one."""
        headers = tuple(scope["headers"])
        given = find_header(headers, b"x-request-id")
        valid = given is not None and _REQUEST_ID.match(given) is not None
        request_id = given.decode("ascii") if given and valid else f"req-{os.urandom(16).hex()}"
        return cls(scope["method"], scope["path"], headers, request_id, receive)

    async def read_body(self, limit_bytes: int) -> bytes | Refusal:
        """Return the whole body, or the refusal of one that is too large or encoded.

        Raises: ClientLeftError.
        """
        encoding = find_header(self.headers, b"content-encoding")
        if encoding not in {None, b"", b"identity"}:
            return Refusal(Code.UNSUPPORTED_VALUE, "Send the request body without an encoding.")
        declared = find_header(self.headers, b"content-length")
        if declared is not None and declared.isdigit() and int(declared) > limit_bytes:
            return refuse_oversize(limit_bytes)
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientLeftError
            part = message.get("body", b"")
            size += len(part)
            if size > limit_bytes:
                return refuse_oversize(limit_bytes)
            parts.append(part)
            if not message.get("more_body", False):
                return parts[0] if len(parts) == 1 else b"".join(parts)

    async def until_client_leaves(
        self, work: Coroutine[Any, Any, _Result], has_all: Callable[[], bool]
    ) -> _Result:
        """Return what the work returns, unless the client leaves before it `has_all` of its answer.

        Raises: ClientLeftError, with the work already cancelled.
        """
        watch = _LeaveWatch(self.receive, has_all)
        try:
            return await work
        except asyncio.CancelledError:
            if watch.has_cancelled():
                raise ClientLeftError from None
            raise
        finally:
            watch.stop()


class _LeaveWatch:
    """Cancels the task that made it once the client has left without its whole answer."""

    def __init__(self, receive: Receive, has_all: Callable[[], bool]) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - requests are tasks
        self._receive, self._has_all = receive, has_all
        self._task, self._cancelling = task, task.cancelling()
        self._left = False
        self._watcher: asyncio.Task[None] | None = None
        # Most refusals and short answers are over by then, and spare themselves the task.
        self._timer = asyncio.get_running_loop().call_later(_WATCH_AFTER_SECONDS, self._begin)

    def has_cancelled(self) -> bool:
        """Whether it was this that cancelled the task, and nobody else."""
        return self._left and self._task.uncancel() <= self._cancelling

    def stop(self) -> None:
        """Watch no more."""
        self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()

    def _begin(self) -> None:
        self._watcher = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        # The server says the same of a client that stays and has its answer: what is left to do,
        # such as reading the end of the node's stream, is not for the client.
        if not self._has_all():
            self._left = True
            self._task.cancel()


def find_header(headers: Iterable[RawHeader], name: bytes) -> bytes | None:
    """Return the first value of a header, or None. `name` is lower case."""
    for key, value in headers:
        if key == name or key.lower() == name:
            return value
    return None


class Downstream:
    """The answer to one client: at most one, whole or visibly broken.

    `model` is the Model whose engine was asked last, `usage` what the answer has cost so far, as
    far as it is known; `extra_headers` go with whatever answer there is. `route` says in a header
    how it came to its node, as known when the answer begins.
    """

    def __init__(self, send: Send, request_id: str, clock: Callable[[], float]) -> None:
        self._server_send = send
        self._request_id = request_id
        self._clock = clock
        self.started = False
        self.whole = False
        self.status = 0
        self.first_data_seconds: float | None = None
        self.model: str | None = None
        self.usage: Usage | None = None
        self.extra_headers: tuple[RawHeader, ...] = ()
        self.route = ""

    @property
    def has_data(self) -> bool:
        """Whether the client has any part of a streamed answer; comments are none."""
        return self.first_data_seconds is not None

    async def start(self, status: int, headers: Iterable[RawHeader]) -> None:
        """Send the head of an answer whose length is not known yet."""
        self.started, self.status = True, status
        own = [(b"x-request-id", self._request_id.encode("ascii")), *self.extra_headers]
        if self.model is not None:
            own.append((b"x-mlxfleet-model", self.model.encode("latin-1")))
        if self.route:
            own.append((ROUTE_HEADER, self.route.encode("ascii", "replace")))
        await self._send(
            {"type": "http.response.start", "status": status, "headers": [*headers, *own]}
        )

    async def write(self, data: bytes, *, has_data: bool = True, last: bool = False) -> None:
        """Send part of the body; comments alone are no data. `last` makes it a normal end."""
        if has_data and self.first_data_seconds is None:
            self.first_data_seconds = self._clock()
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})
        self.whole = last

    async def answer(self, status: int, headers: Iterable[RawHeader], body: bytes) -> None:
        """Send a whole answer."""
        length = (b"content-length", str(len(body)).encode("ascii"))
        await self.start(status, (*headers, length))
        await self._send({"type": "http.response.body", "body": body})
        self.whole = True

    async def answer_json(self, value: Any) -> None:
        """Send a JSON value with status 200."""
        await self.answer(200, (_JSON,), json.dumps(value).encode())

    async def refuse(self, refusal: Refusal, headers: Iterable[RawHeader] = ()) -> None:
        """Send an error: as an HTTP answer, or inside a stream that has begun.

        A stream that has begun ends without `[DONE]` and without its closing chunk, so that
        the server drops the connection: nobody can take it for a normal end.
        """
        body = json.dumps(openai_error(refusal)).encode()
        if self.started:
            await self.write(error_event(body))
            return
        waits = [
            (name.lower().encode("ascii"), value.encode("ascii"))
            for name, value in openai_headers(refusal).items()
        ]
        await self.answer(refusal.http_status, (_JSON, *waits, *headers), body)

    async def _send(self, message: Message) -> None:
        try:
            await self._server_send(message)
        except OSError as fault:
            raise ClientLeftError from fault
