"""The agent's configuration, parsed once from the command line into frozen slices.

Every fault of the command line is told together, each with its flag and the fix.
"""

import argparse
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from manifests.kinds.cache_budget import CacheBudgetSpec, HotTier, SsdTier
from manifests.kinds.guard import MemoryGuardSpec, Tier
from manifests.kinds.meta import NAME_PATTERN
from manifests.units import Quantity, parse_duration, parse_quantity
from node_agent.host.simulated import SimulatedMachine, read_quantity_file
from node_agent.sync.identity import node_name_of

_T = TypeVar("_T")
_LABEL_KEY = re.compile(
    r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


class SettingsError(Exception):
    """The command line cannot be used; one line for each fault."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = tuple(faults)


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where the HTTP API listens; port 0 lets the system choose."""

    host: str = "127.0.0.1"
    port: int = 7071


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Everything the app hands out.

    `advertise` is the URL under which gateways reach this agent; None makes it from the
    listening address. Without `enforced` the memory guard measures and grants everything, which
    only a test of the guard wants. `simulated` is None on a real machine. At most `memory_line`
    requests and loads wait for memory, a request at most `memory_wait_seconds`. `cache` is the
    budget of the prefix cache where no CacheBudget selects this node. Units: seconds.
    """

    name: str
    controller_url: str
    data_dir: Path
    listen: ListenAddress = field(default_factory=ListenAddress)
    advertise: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    guard: MemoryGuardSpec = field(default_factory=MemoryGuardSpec)
    simulated: SimulatedMachine | None = None
    grace_seconds: float = 30.0
    log_format: str = "text"
    enforced: bool = True
    memory_line: int = 64
    memory_wait_seconds: float = 30.0
    cache: CacheBudgetSpec = field(default_factory=CacheBudgetSpec)


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m node_agent", description="The node agent: one per machine."
    )
    add = parser.add_argument
    add("--name", help="the node's name; default: made from the host name")
    add("--controller", default="http://127.0.0.1:7070", metavar="URL", help="the controller's API")
    add("--listen", default="127.0.0.1:7071", metavar="HOST:PORT", help="port 0: any free one")
    add("--advertise", metavar="URL", help="how gateways reach this agent; default: --listen")
    add("--data", default="~/.mlxfleet/agent", metavar="DIR", help="identity, logs, cache")
    add("--label", action="append", default=[], metavar="KEY=VALUE", help="may be repeated")
    add(
        "--tier",
        default="balanced",
        help="memory tier without a MemoryGuard: safe, balanced, aggressive",
    )
    add("--guard", choices=("on", "off"), default="on", help=argparse.SUPPRESS)
    add("--grace", default="30s", metavar="DURATION", help="time for running requests at a stop")
    add("--memory-line", default="64", metavar="COUNT", help="how many may wait for memory")
    add("--memory-wait", default="30s", metavar="DURATION", help="how long a request may wait")
    add("--ssd-cache", default="50Gi", metavar="QUANTITY", help="without a CacheBudget; 0: no SSD")
    add("--hot-cache", default="1Gi", metavar="QUANTITY", help="the same in RAM; 0: none")
    add("--ram", metavar="QUANTITY", help="simulate a machine with this much memory")
    add("--wired-limit", metavar="QUANTITY", help="the simulated machine's iogpu.wired_limit")
    add(
        "--other-apps",
        metavar="QUANTITY",
        help="memory other apps use on the simulated machine; @FILE reads it anew each time",
    )
    add("--log-format", default="text", choices=("text", "json"), help="logs go to stderr")
    return parser


class _Faults:
    """Collects faults, so that all are told at once."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def take(self, flag: str, parse: Callable[[str], _T], text: str, fallback: _T) -> _T:
        """Return the parsed value, or note the fault and return the fallback."""
        try:
            return parse(text)
        except ValueError as fault:
            self.lines.append(f"{flag}: {fault}")
            return fallback


def parse_name(text: str) -> str:
    """Return a node name. Raises ValueError."""
    if not text or len(text) > 63 or not re.fullmatch(NAME_PATTERN, text):
        raise ValueError(f"not a node name: {text!r}; use lower-case letters, digits, '-' and '.'")
    return text


def parse_listen(text: str) -> ListenAddress:
    """Return host and port of HOST:PORT. Raises ValueError."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"not HOST:PORT: {text!r}; write for example 127.0.0.1:7071")
    return ListenAddress(host.strip("[]") or "0.0.0.0", int(port))  # noqa: S104 - asked for


def parse_url(text: str) -> str:
    """Return an http(s) URL without a trailing slash. Raises ValueError."""
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError(f"not a URL: {text!r}; write for example http://controller:7070")
    return text.rstrip("/")


def parse_count(text: str) -> int:
    """Return a whole number from 0. Raises ValueError."""
    if not text.isdecimal():
        raise ValueError(f"not a count: {text!r}; write a whole number, 0 or more")
    return int(text)


def parse_label(text: str) -> tuple[str, str]:
    """Return key and value of KEY=VALUE. Raises ValueError."""
    key, equals, value = text.partition("=")
    if not equals or not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
        raise ValueError(f"not a label: {text!r}; write for example room=lab")
    return key, value


def parse_tier(text: str) -> MemoryGuardSpec:
    """Return the guard of a tier. Raises ValueError."""
    usable = [tier.value for tier in Tier if tier is not Tier.CUSTOM]
    if text not in usable:
        raise ValueError(f"unknown tier {text!r}; use {', '.join(usable)}, or a MemoryGuard")
    return MemoryGuardSpec(tier=Tier(text))


def read_quantity(text: str) -> int:
    """Return the bytes of a quantity, or of the file that `@FILE` names. Raises ValueError."""
    if not text.startswith("@"):
        return parse_quantity(text)
    try:
        return read_quantity_file(Path(text[1:]))
    except OSError as fault:
        raise ValueError(f"cannot read {text}: {fault}") from fault


def parse_budget(ssd: str, hot: str, faults: "_Faults") -> CacheBudgetSpec:
    """Return the cache budget of this agent's own. Mutates: notes faults."""
    zero = Quantity(text="0", bytes=0)
    ssd_size = faults.take("--ssd-cache", parse_size, ssd, zero)
    hot_size = faults.take("--hot-cache", parse_size, hot, zero)
    return CacheBudgetSpec(
        ssd=SsdTier(enabled=ssd_size.bytes > 0, size=ssd_size),
        hot=HotTier(enabled=hot_size.bytes > 0, size=hot_size),
    )


def parse_size(text: str) -> Quantity:
    """Return a quantity with its text. Raises ValueError."""
    return Quantity(text=text, bytes=parse_quantity(text))


def _parse_simulated(options: argparse.Namespace, faults: _Faults) -> SimulatedMachine | None:
    extras = {"--wired-limit": options.wired_limit, "--other-apps": options.other_apps}
    if options.ram is None:
        given = [flag for flag, text in extras.items() if text is not None]
        faults.lines.extend(f"{flag}: works only together with --ram" for flag in given)
        return None
    ram = faults.take("--ram", parse_quantity, options.ram, 1)
    if ram == 0:
        faults.lines.append("--ram: must be more than 0")
    others = options.other_apps or ""
    file = Path(others[1:]).absolute() if others.startswith("@") else None
    bytes_of = {
        flag: faults.take(flag, read_quantity, text, 0)
        for flag, text in extras.items()
        if text is not None
    }
    return SimulatedMachine(
        ram, bytes_of.get("--wired-limit"), bytes_of.get("--other-apps", 0), file
    )


def parse_settings(arguments: Sequence[str]) -> AgentSettings:
    """Return the settings of a command line. Raises SettingsError naming every fault."""
    options = _build_parser().parse_args(arguments)
    faults = _Faults()
    name = options.name if options.name is not None else node_name_of(socket.gethostname())
    labels = [faults.take("--label", parse_label, text, ("", "")) for text in options.label]
    settings = AgentSettings(
        name=faults.take("--name", parse_name, name, ""),
        controller_url=faults.take("--controller", parse_url, options.controller, ""),
        data_dir=Path(options.data).expanduser().absolute(),
        listen=faults.take("--listen", parse_listen, options.listen, ListenAddress()),
        advertise=None
        if options.advertise is None
        else faults.take("--advertise", parse_url, options.advertise, ""),
        labels=dict(labels),
        enforced=options.guard == "on",
        guard=faults.take("--tier", parse_tier, options.tier, MemoryGuardSpec()),
        simulated=_parse_simulated(options, faults),
        grace_seconds=faults.take("--grace", parse_duration, options.grace, 0.0),
        log_format=options.log_format,
        memory_line=faults.take("--memory-line", parse_count, options.memory_line, 0),
        memory_wait_seconds=faults.take("--memory-wait", parse_duration, options.memory_wait, 0.0),
        cache=parse_budget(options.ssd_cache, options.hot_cache, faults),
    )
    if faults.lines:
        raise SettingsError(faults.lines)
    return settings
