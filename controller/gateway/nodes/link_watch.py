"""A guard against bodies that never end because their connection is gone.

aiohttp 3.14 closes the connection on bytes that are not valid chunks, but tells neither the
body nor its own read timeout, so that the reader would wait for ever. Called by the streams that
are read for as long as a node is declared; requests have their own links.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp

_CHECK_SECONDS = 0.5


@contextmanager
def watch_link(response: aiohttp.ClientResponse) -> Iterator[None]:
    """Fail the body soon after its connection is gone, while the block runs."""
    watch = _LinkWatch(response)
    try:
        yield
    finally:
        watch.stop()


class _LinkWatch:
    """Looks at one response now and then."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self._loop = asyncio.get_running_loop()
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
        self._timer = self._loop.call_later(_CHECK_SECONDS, self._check)
