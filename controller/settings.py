"""The controller's configuration, parsed once from the command line into frozen slices."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

from controller.gateway.settings import GatewaySettings
from controller.reconcile.settings import ReconcileSettings
from controller.store.table import HISTORY_CHANGES

DATABASE_NAME = "fleet.db"
TOKENIZERS_NAME = "tokenizers"


class Role(StrEnum):
    """A part of the controller that can run in a process of its own."""

    API = "api"
    RECONCILE = "reconcile"
    GATEWAY = "gateway"


class StoreKind(StrEnum):
    """Where declared objects are kept."""

    SQLITE = "sqlite"
    MEMORY = "memory"


class LogFormat(StrEnum):
    """How log lines on stderr look."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Listen:
    """Where the one HTTP server listens; port 0 lets the system choose."""

    host: str = "127.0.0.1"
    port: int = 7070


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """`data_dir` is None for the memory store, whose objects end with the process.

    `history_changes` bounds how far back a watch may resume.
    """

    kind: StoreKind = StoreKind.MEMORY
    data_dir: Path | None = None
    history_changes: int = HISTORY_CHANGES


@dataclass(frozen=True, slots=True)
class ShutdownSettings:
    """How the process ends. Units: seconds.

    `drain_seconds` passes between "not ready" and the last accepted connection, for load
    balancers; requests then have `grace_seconds` to finish.
    """

    drain_seconds: float = 0.0
    grace_seconds: int = 20


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything the app hands out. `api_url` is None when the api role runs here.

    With more `workers` than one this process starts them and serves nothing itself; a worker has
    `shared_port`, and ends when its standard input does.
    """

    listen: Listen = field(default_factory=Listen)
    store: StoreSettings = field(default_factory=StoreSettings)
    roles: frozenset[Role] = frozenset(Role)
    api_url: str | None = None
    log_format: LogFormat = LogFormat.TEXT
    shutdown: ShutdownSettings = field(default_factory=ShutdownSettings)
    gateway: GatewaySettings = field(default_factory=GatewaySettings)
    reconcile: ReconcileSettings = field(default_factory=ReconcileSettings)
    workers: int = 1
    shared_port: bool = False


def parse_settings(arguments: Sequence[str] | None = None) -> Settings:
    """Return the settings of a command line; a fault ends the process with code 2 and says why."""
    parser = _parser()
    given = parser.parse_args(arguments)
    roles: frozenset[Role] = given.roles
    if Role.API in roles:
        if given.api is not None:
            parser.error("--api names another controller's API; leave it out with the api role")
        if given.store is StoreKind.SQLITE and given.data is None:
            parser.error("--store sqlite needs --data DIR")
        if given.store is StoreKind.MEMORY and given.data is not None:
            parser.error("--store memory keeps nothing in --data DIR; leave one of them out")
    elif given.api is None:
        parser.error("without the api role, --api URL must name a controller that has it")
    _check_workers(parser, given.workers, roles)
    data_dir = None if given.data is None else given.data.expanduser().resolve()
    return Settings(
        listen=given.listen,
        store=StoreSettings(given.store, data_dir),
        roles=roles,
        api_url=given.api,
        log_format=given.log_format,
        shutdown=ShutdownSettings(given.drain_seconds, given.grace_seconds),
        gateway=GatewaySettings(
            require_key=given.require_key,
            tokenizer_dir=None if data_dir is None else data_dir / TOKENIZERS_NAME,
        ),
        workers=given.workers,
        shared_port=given.shared_port,
    )


def parse_listen(text: str) -> Listen:
    """Return the address that HOST:PORT means; an IPv6 host stands in brackets.

    Raises: argparse.ArgumentTypeError.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:7070")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise argparse.ArgumentTypeError(f"write the IPv6 host in brackets: [{host}]:{port}")
    return Listen(host or "127.0.0.1", int(port))


def parse_roles(text: str) -> frozenset[Role]:
    """Return the roles of a comma-separated list. Raises: argparse.ArgumentTypeError."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    unknown = [word for word in words if word not in set(Role)]
    if unknown or not words:
        said = f"unknown role {unknown[0]!r}" if unknown else "no role given"
        raise argparse.ArgumentTypeError(f"{said}; choose from {', '.join(Role)}")
    return frozenset(Role(word) for word in words)


def _check_workers(parser: argparse.ArgumentParser, workers: int, roles: frozenset[Role]) -> None:
    if workers < 1:
        parser.error("--workers needs a number from 1")
    if workers > 1 and roles != {Role.GATEWAY}:
        parser.error("--workers is for gateways alone: add --roles gateway --api URL")
    if workers > 1 and sys.platform != "linux":
        parser.error(
            "--workers needs Linux, which spreads one port over processes; start gateways on "
            "ports of their own and put a load balancer before them"
        )


def parse_url(text: str) -> str:
    """Return a base URL without a trailing slash. Raises: argparse.ArgumentTypeError."""
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.netloc or parts.path.strip("/"):
        raise argparse.ArgumentTypeError(f"{text!r} is not http://HOST:PORT")
    return text.rstrip("/")


def _add_gateway_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--require-key",
        action="store_true",
        help="the gateway asks for an API key even while no ApiKey is declared",
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=1,
        metavar="N",
        help="with --roles gateway: so many processes behind the one port (default 1; Linux)",
    )
    parser.add_argument("--shared-port", action="store_true", help=argparse.SUPPRESS)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m controller",
        description="The control plane of mlxfleet: API, reconcilers and the OpenAI gateway.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--listen",
        type=parse_listen,
        default=Listen(),
        metavar="HOST:PORT",
        help="address of the one HTTP server (default 127.0.0.1:7070; port 0: any free one)",
    )
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="directory of the database; one controller each"
    )
    parser.add_argument(
        "--store",
        type=StoreKind,
        choices=list(StoreKind),
        default=StoreKind.SQLITE,
        help="where objects are kept (default sqlite; memory forgets them at exit)",
    )
    parser.add_argument(
        "--roles",
        type=parse_roles,
        default=frozenset(Role),
        metavar="ROLE,...",
        help="what runs here: api, reconcile, gateway (default all)",
    )
    parser.add_argument(
        "--api", type=parse_url, metavar="URL", help="API to use when the api role is elsewhere"
    )
    _add_gateway_options(parser)
    parser.add_argument(
        "--log-format", type=LogFormat, choices=list(LogFormat), default=LogFormat.TEXT
    )
    parser.add_argument(
        "--drain-seconds",
        type=float,
        default=0.0,
        help="after a stop signal, stay up but not ready for so long (default 0)",
    )
    parser.add_argument(
        "--grace-seconds",
        type=int,
        default=20,
        help="then let running requests finish for so long (default 20)",
    )
    return parser
