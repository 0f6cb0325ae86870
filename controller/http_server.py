"""One HTTP server on one bound socket. Knows uvicorn; the app decides when it stops."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from controller.settings import Listen

# Longer than clients keep idle connections, so that none closes under a request just sent.
_KEEP_ALIVE_SECONDS = 75
HEAD_BYTES_MAX = 64 * 1024
"""A request's line and headers may take so much, and what one read of the socket brings more."""
_HEAD_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"content-length: 42\r\nconnection: close\r\n\r\nSend fewer or shorter headers: 64 KiB most"
)


class AddressInUseError(Exception):
    """The address cannot be listened on; the message is for the person who started us."""


def bind(listen: Listen, *, shared: bool = False, listening: bool = True) -> socket.socket:
    """Return a listening-ready socket. Raises: AddressInUseError.

    A `shared` port is one of several processes, all of which must say so.
    """
    try:
        found = socket.getaddrinfo(
            listen.host, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as fault:
        raise AddressInUseError(f"cannot listen on {listen.host}: {fault}") from fault
    family, kind, protocol, _, address = found[0]
    bound = socket.socket(family, kind, protocol)
    with contextlib.ExitStack() as undo:
        undo.callback(bound.close)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            bound.bind(address)
            # Listening here, not later, is what makes a second listener fail now.
            if listening:
                bound.listen(2048)
        except OSError as fault:
            raise AddressInUseError(
                f"cannot listen on {listen.host} port {listen.port}: {fault.strerror}; stop what "
                f"uses it or choose another --listen HOST:PORT"
            ) from fault
        bound.setblocking(False)
        undo.pop_all()
    return bound


def base_url(bound: socket.socket) -> str:
    """Return the URL under which a bound socket is reached from this machine."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class HeadHolder(asyncio.Transport):
    """A transport that sends the head of an answer with what follows it, in one call of the system.

    uvloop passes every write to the kernel at once; a head alone waits for the next write, and no
    longer than until the loop's next turn.
    """

    def __init__(self, inner: asyncio.Transport) -> None:
        """Write to `inner`."""
        super().__init__()
        self._inner, self._held = inner, b""
        self._loop = asyncio.get_running_loop()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes, the held ones before."""
        if self._held:
            held, self._held = self._held, b""
            self._inner.write(held + data)
        elif data[:5] == b"HTTP/":
            self._held = bytes(data)
            self._loop.call_soon(self._flush)
        else:
            self._inner.write(data)

    def close(self) -> None:
        """Close once all is sent."""
        self._flush()
        self._inner.close()

    def abort(self) -> None:
        """Close at once."""
        self._held = b""
        self._inner.abort()

    def is_closing(self) -> bool:
        """Whether it is closed or about to be."""
        return self._inner.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what is known of the connection."""
        return self._inner.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Hand the connection to another protocol."""
        self._flush()
        self._inner.set_protocol(protocol)

    def pause_reading(self) -> None:
        """Read no more for now."""
        self._inner.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        self._inner.resume_reading()

    def _flush(self) -> None:
        if self._held:
            held, self._held = self._held, b""
            self._inner.write(held)


class BoundedHttp(HttpToolsProtocol):
    """The protocol with a bound on a request's head, which its parser would gather without end."""

    _in_head = _began_before = False
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin; answers go out in as few writes as may be."""
        super().connection_made(HeadHolder(transport))

    def data_received(self, data: bytes) -> None:
        """Take bytes; refuse a head that is too large."""
        self._began_before = self._in_head
        super().data_received(data)
        # A read in which a head begins may hold other requests too, and is not counted.
        if not (self._in_head and self._began_before):
            return
        self._head_bytes += len(data)
        if self._head_bytes > HEAD_BYTES_MAX:
            self.transport.write(_HEAD_TOO_LARGE)
            self.transport.close()

    def on_message_begin(self) -> None:
        """A head begins."""
        self._in_head, self._began_before, self._head_bytes = True, False, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """It is whole; what follows is the body, which its reader bounds."""
        self._in_head = False
        super().on_headers_complete()


class HttpServer(uvicorn.Server):
    """A server that leaves signals to the app."""

    def __init__(self, app: ASGIApp, grace_seconds: int) -> None:
        """Give requests `grace_seconds` to finish once `should_exit` is set."""
        super().__init__(
            uvicorn.Config(
                app,
                http=BoundedHttp,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                # Nobody reads who stands before us.
                proxy_headers=False,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=grace_seconds,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no handlers."""
        yield
