"""The HTTP server of the agent: sockets, limits, uvicorn.

Called by the app only. Signals are the app's; the server stops when told.
"""

import contextlib
import resource
import socket
from collections.abc import Generator
from urllib.parse import urlsplit

import uvicorn
from starlette.types import ASGIApp

from node_agent.settings import ListenAddress

_BACKLOG = 2048
_CLOSE_SECONDS = 5
_FALLBACK_FILES = 10240


class ListenError(Exception):
    """The address cannot be listened on; the message says why."""


def raise_file_limit() -> None:
    """Allow as many open files as the system lets us. Mutates: this process's limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (hard, _FALLBACK_FILES):
        if wanted != resource.RLIM_INFINITY and wanted <= soft:
            return
        # macOS says "infinity" and refuses it.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return


def open_socket(listen: ListenAddress) -> socket.socket:
    """Return a listening socket. Raises ListenError."""
    try:
        found = socket.getaddrinfo(
            listen.host, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, _, _, _, address = found[0]
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError as fault:
        raise ListenError(f"--listen: {listen.host}: {fault.strerror}") from fault
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except OSError as fault:
        sock.close()
        raise ListenError(
            f"--listen: {listen.host}:{listen.port}: {fault.strerror}; "
            "free the port or choose another"
        ) from fault
    return sock


def plan_address(bound_host: str, port: int, route_host: str) -> str:
    """Return the URL to advertise; an agent on all addresses is reached at `route_host`."""
    host = route_host if bound_host in {"0.0.0.0", "::"} else bound_host  # noqa: S104
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def find_route_host(controller_url: str) -> str:
    """Return this machine's address on the way to the controller; sends nothing."""
    parts = urlsplit(controller_url)
    try:
        found = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_DGRAM)
        family, _, _, _, address = found[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return socket.gethostname()


class HttpServer(uvicorn.Server):
    """Uvicorn without its own signal handlers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave signals to the app."""
        yield


def build_server(app: ASGIApp) -> HttpServer:
    """Return a server for an application; `serve(sockets=[...])` runs it."""
    return HttpServer(
        uvicorn.Config(
            app,
            http="httptools",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_CLOSE_SECONDS,
        )
    )
