"""A guard against bodies that never end because their connection or their node is gone.

aiohttp 3.14 closes the connection on bytes that are not valid chunks, but tells neither the
body nor its own read timeout, so that the reader would wait for ever. Called wherever the
gateway reads from an agent.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import aiohttp

_CHECK_SECONDS = 0.5


IsGone = Callable[[float], bool]
"""Whether to give a node up, by the seconds for which this body has been silent."""


@contextmanager
def watch_link(response: aiohttp.ClientResponse, is_gone: IsGone | None = None) -> Iterator[None]:
    """Fail the body soon after its connection or its node is gone, while the block runs."""
    watch = _LinkWatch(response, is_gone)
    try:
        yield
    finally:
        watch.stop()


class _LinkWatch:
    """Looks at one response now and then."""

    def __init__(self, response: aiohttp.ClientResponse, is_gone: IsGone | None) -> None:
        self._response, self._is_gone = response, is_gone
        self._loop = asyncio.get_running_loop()
        self._seen_bytes, self._heard_seconds = response.content.total_bytes, self._loop.time()
        self._timer = self._loop.call_later(_CHECK_SECONDS, self._check)

    def stop(self) -> None:
        """Watch no more."""
        self._timer.cancel()

    def _check(self) -> None:
        link, content = self._response.connection, self._response.content
        if link is None or content.is_eof() or content.exception() is not None:
            return
        if link.transport is None:
            content.set_exception(aiohttp.ClientPayloadError("the connection is gone"))
            return
        # A body ends here and not by cancelling its reader, which may be writing to the client:
        # nobody could tell then what the client has.
        if self._is_gone is not None and self._is_gone(self._silent_seconds(content)):
            content.set_exception(aiohttp.SocketTimeoutError("the node is silent"))
            return
        self._timer = self._loop.call_later(_CHECK_SECONDS, self._check)

    def _silent_seconds(self, content: aiohttp.StreamReader) -> float:
        now = self._loop.time()
        if content.total_bytes != self._seen_bytes:
            self._seen_bytes, self._heard_seconds = content.total_bytes, now
        return now - self._heard_seconds
