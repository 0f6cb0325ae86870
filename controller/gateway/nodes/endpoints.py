"""What the gateway knows of each engine it may send to, as frozen values; pure.

Built from load reports by `controller/gateway/nodes/fleet.py`; read by the filters and scorers.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from manifests.kinds.engine import EnginePhase
from manifests.kinds.node import PressureLevel
from manifests.sizing.shape import ModelShape
from manifests.wire.report import EngineLoad, LoadReport
from manifests.wire.room import EngineRoom


class EndpointKey(NamedTuple):
    """Which engine on which node."""

    node: str
    engine: str


@dataclass(frozen=True, slots=True)
class EndpointView:
    """One engine of one node at its last report. Units: tokens, tokens per second, seconds.

    `tokens_fit_ever` and `ceiling_bytes` say what the node gives on its best day; 0 is unknown.
    `wakes` means that its engine was unloaded to make room, or is coming back: a request may
    wait there, about `load_seconds` (0 is unknown). `prompt_tokens_left` are of all its requests;
    the prefill rate was measured at a depth of `prefill_context_tokens`. With `room` and `shape`
    its node's verdict can be computed. None is an agent that does not tell, or has yet to.
    """

    key: EndpointKey
    address: str
    model: str
    aliases: tuple[str, ...]
    phase: EnginePhase
    accepting: bool
    running: int
    waiting: int
    max_running: int
    max_waiting: int
    context_tokens: int
    tokens_fit_now: int
    prefill_tokens_per_second: float
    decode_tokens_per_second: float
    pressure: PressureLevel
    reported_seconds: float
    tokens_fit_ever: int = 0
    ceiling_bytes: int = 0
    wakes: bool = False
    load_seconds: float = 0.0
    restore_tokens_per_second: float = 0.0
    prefill_context_tokens: float | None = None
    prompt_tokens_left: int | None = None
    room: EngineRoom | None = None
    shape: ModelShape | None = None
    cache_fingerprint: str = ""
    cache_isolated: bool = False
    text_fingerprint: str = ""

    @property
    def places(self) -> int:
        """How many requests it holds at most, 0 when unknown."""
        return self.max_running + self.max_waiting

    @property
    def ever_bytes(self) -> int:
        """What its node gives one request on its best day, 0 when unknown."""
        return 0 if self.room is None else self.room.ever_bytes

    @property
    def panic_ratio(self) -> float:
        """What is left of its node's ceilings after kernel panics, 1 without any."""
        return 1.0 if self.room is None else self.room.knobs.ceiling_ratio


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A load report with what the gateway adds: where it came from, when, and whether it holds.

    `received_seconds` is on the gateway's monotonic clock.
    """

    node: str
    address: str
    report: LoadReport
    received_seconds: float
    routable: bool


def plan_endpoints(seen: NodeReport) -> tuple[EndpointView, ...]:
    """Return the endpoints of one node, sorted by engine name."""
    open_ = seen.routable and seen.report.accepting
    return tuple(
        _endpoint(seen, load, open_=open_)
        for load in sorted(seen.report.engines, key=lambda load: load.name)
    )


@lru_cache(maxsize=256)
def _one_of_equal(shape: ModelShape) -> ModelShape:
    """Return the same object for equal shapes, so that comparing those of two nodes is free."""
    return shape


def _endpoint(seen: NodeReport, load: EngineLoad, *, open_: bool) -> EndpointView:
    accepting = open_ and load.accepting and load.phase is EnginePhase.READY
    return EndpointView(
        key=EndpointKey(seen.node, load.name),
        address=seen.address,
        model=load.model,
        aliases=load.aliases,
        phase=load.phase,
        accepting=accepting,
        running=load.running,
        waiting=load.waiting,
        max_running=load.max_running,
        max_waiting=load.max_waiting,
        context_tokens=load.context_tokens,
        tokens_fit_now=load.tokens_fit_now,
        prefill_tokens_per_second=load.prefill_tokens_per_second,
        decode_tokens_per_second=load.decode_tokens_per_second,
        pressure=seen.report.pressure,
        reported_seconds=seen.received_seconds,
        tokens_fit_ever=load.tokens_fit_ever,
        ceiling_bytes=seen.report.ceilings.abort_bytes,
        wakes=open_ and load.wakes and not accepting,
        load_seconds=load.load_seconds,
        restore_tokens_per_second=load.restore_tokens_per_second,
        prefill_context_tokens=load.prefill_context_tokens,
        prompt_tokens_left=load.prompt_tokens_left,
        room=load.room,
        shape=None if load.shape is None else _one_of_equal(load.shape),
        cache_fingerprint=load.cache_fingerprint,
        cache_isolated=load.cache_isolated,
        text_fingerprint=load.text_fingerprint,
    )
