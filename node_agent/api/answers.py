"""A run as an HTTP answer: one JSON body, or server-sent events with keep-alives.

No byte goes out before the first token or the first keep-alive, so that a run which fails
early still gets a status code that a router can act on. A later failure is an in-band error
event without `[DONE]`. Leaving ends the run at once.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from manifests.errors import EngineError
from manifests.wire.error_body import openai_error
from manifests.wire.gateway import USAGE_EACH, USAGE_END, usage_comment
from node_agent.api.disconnect import until_gone
from node_agent.api.errors import refusal_response
from node_agent.api.traffic import Outcome, Ticket
from node_agent.serving.completion import Run
from node_agent.serving.responses import StreamWriter, whole_body
from node_agent.serving.sse import DONE, comment, encode_json, event
from node_agent.serving.telling import Teller, can_move

KEEP_ALIVE_SECONDS = 10.0
_SSE_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


@dataclass(frozen=True, slots=True)
class Manner:
    """How a run is answered.

    `tells_usage`: with which events of a stream a comment says what it has cost so far. `tells`
    adds what its gateway needs to move it; rows in `greeted` have had their first chunk elsewhere.
    """

    stream: bool
    keep_alive_seconds: float
    tells_usage: str = ""
    tells: bool = False
    greeted: frozenset[int] = frozenset()


class RunResponse(Response):
    """Answers with one run and ends its ticket, whatever happens."""

    def __init__(self, run: Run, ticket: Ticket, manner: Manner) -> None:
        super().__init__()
        self._run, self._ticket, self._manner = run, ticket, manner
        self._outcome = "cancelled"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the answer until it is sent or its client has left."""
        answer = self._stream(send) if self._manner.stream else self._whole()
        try:
            response = await until_gone(receive, answer)
            if response is not None:
                await response(scope, receive, send)
        finally:
            self._run.close()
            self._ticket.end(Outcome(self._outcome, self._run.usage_here, self._run.timing))

    async def _whole(self) -> Response:
        run, events = self._run, []
        try:
            while (item := await run.next()) is not None:
                events.append(item)
        except EngineError as error:
            return self._refused(error)
        self._outcome = "ok"
        body = whole_body(run.identity, events, run.rows, run.usage)
        return Response(encode_json(body), media_type="application/json")

    def _refused(self, error: EngineError) -> Response:
        self._outcome = error.refusal.code.value
        return refusal_response(error.refusal)

    async def _stream(self, send: Send) -> Response | None:
        """Send the stream; return a response instead when it failed before its first byte."""
        started = False
        async with aclosing(self._frames()) as frames:
            try:
                async for data in frames:
                    if not started:
                        await send(_start_message())
                        started = True
                    await send({"type": "http.response.body", "body": data, "more_body": True})
            except EngineError as error:
                if not started:
                    return self._refused(error)
                self._outcome = error.refusal.code.value
                data = event(openai_error(error.refusal))
                await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return None

    async def _frames(self) -> AsyncGenerator[bytes]:
        run = self._run
        writer = StreamWriter(run.identity, set(self._manner.greeted))
        tells = self._manner.tells and can_move(run.identity)
        teller = Teller(run.identity, run.rows) if tells else None
        while True:
            try:
                async with asyncio.timeout(self._manner.keep_alive_seconds):
                    item = await run.next()
            except TimeoutError:
                done, total = run.progress
                yield comment(f"keep-alive prefill {done}/{total}")
                continue
            if item is None:
                break
            so_far = self._so_far(USAGE_EACH)
            events = [event(chunk) for chunk in writer.chunks(item)]
            yield so_far + (b"".join(events) if teller is None else teller.frame(item, events))
        self._outcome = "ok"
        if run.identity.include_usage:
            yield event(writer.usage_chunk(run.usage))
        yield self._so_far(USAGE_EACH, USAGE_END) + DONE

    def _so_far(self, *wanted: str) -> bytes:
        """Return the comment that tells usage, if that is what the gateway wants."""
        if self._manner.tells_usage not in wanted:
            return b""
        usage = self._run.usage
        return usage_comment(usage.prompt_tokens, usage.completion_tokens)


def _start_message() -> dict[str, object]:
    response = Response(media_type="text/event-stream", headers=_SSE_HEADERS)
    del response.headers["content-length"]
    return {"type": "http.response.start", "status": 200, "headers": response.raw_headers}
