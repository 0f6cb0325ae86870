"""What memory looked like at one moment, as frozen values.

Owns the shapes and the high-water arithmetic. Reads nothing: `node_agent.host` fills
`HostMemory`, the monitor fills `EngineUse`. Units: bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from manifests.sizing.estimate import ENGINE_BASE_BYTES
from node_agent.host.base import HostMemory

# A mark holds for so many samples and so long. Somebody who begins to wait is looked after at once,
# so in a burst three samples may lie within milliseconds: in one trough, or before an engine at
# rest has given back what it freed (engine/heap.py: after 0.5 s).
HIGH_WATER_SAMPLES = 3
HIGH_WATER_SECONDS = 0.65


@dataclass(frozen=True, slots=True)
class EngineUse:
    """One engine process: what the OS charges it and what MLX says it holds.

    `footprint_bytes` is None when the OS does not tell; `weights_bytes` is what MLX held when the
    model was loaded, 0 before; `busy` means that it has requests. `hot_bytes` of the footprint are
    cached blocks, which it gives up when told to.
    """

    engine: str
    pid: int
    footprint_bytes: int | None
    mlx_bytes: int = 0
    weights_bytes: int = 0
    recommended_working_set_bytes: int = 0
    busy: bool = False
    hot_bytes: int = 0

    @property
    def measured_bytes(self) -> int:
        """The larger of the two views; either one alone misses memory the other sees."""
        return max(self.footprint_bytes or 0, self.mlx_bytes)


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement: what is held, and of that what is not cached blocks."""

    at_seconds: float
    held_bytes: int
    bare_bytes: int


@dataclass(frozen=True, slots=True)
class EngineHistory:
    """The last few measurements of one process.

    `used_bytes` is the highest of them, so a read in the trough after a cache clear is not
    believed; `idle_bytes` is the lowest while it had a model and nothing to do, of the last few
    once it has rested that long: a process that has worked does not shrink to what it was when it
    was new. Until it was seen at rest (`rested`) it is what such a process should hold.
    Cached blocks are no part of that. `overhead_bytes` is what it holds beyond MLX's memory: the
    interpreter, the libraries and cached blocks.
    """

    pid: int
    samples: tuple[Sample, ...]
    idle_bytes: int
    rested: bool = False
    weights_bytes: int = 0
    resting_since_seconds: float | None = None
    hot_bytes: int = 0

    @property
    def used_bytes(self) -> int:
        """The short high-water mark."""
        return max(one.held_bytes for one in self.samples)

    @property
    def newest_bytes(self) -> int:
        """The last measurement."""
        return self.samples[-1].held_bytes

    @property
    def overhead_bytes(self) -> int:
        """What MLX does not see: known once seen at rest, when MLX's own part is the weights."""
        bare = max(0, self.idle_bytes - self.weights_bytes) if self.rested else 0
        return bare + self.hot_bytes


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """Host and engines together, as limits and admission see them."""

    host: HostMemory
    engines: Mapping[str, EngineHistory] = field(default_factory=dict)
    recommended_working_set_bytes: int | None = None

    @property
    def used_bytes(self) -> int:
        """What all engines hold."""
        return sum(item.used_bytes for item in self.engines.values())

    @property
    def idle_bytes(self) -> int:
        """What all engines would hold if they served nothing."""
        return sum(item.idle_bytes for item in self.engines.values())


def _next_history(previous: EngineHistory | None, use: EngineUse, now: float) -> EngineHistory:
    """Add one measurement; a new process starts afresh."""
    measured = use.measured_bytes
    samples: tuple[Sample, ...] = ()
    rested, since_seconds = False, None
    if previous is not None and previous.pid == use.pid:
        # When neither the OS nor MLX answered, the memory is still there.
        measured = measured or previous.used_bytes
        samples, rested = previous.samples, previous.rested
        since_seconds = previous.resting_since_seconds
    # What is cached is held, and given up for whoever needs it: it hides no room from a request.
    bare = max(0, measured - use.hot_bytes)
    samples = _still_counted((*samples, Sample(now, measured, bare)), now)
    loaded = use.weights_bytes > 0
    if use.busy or not loaded:
        since_seconds = None
    elif since_seconds is None:
        since_seconds = now
    if _has_rested(samples, since_seconds, now):
        idle = min(one.bare_bytes for one in samples)
    elif previous is not None and rested:
        idle = previous.idle_bytes if use.busy else min(previous.idle_bytes, bare)
    elif loaded and use.busy:
        idle = min(bare, use.weights_bytes + ENGINE_BASE_BYTES)
    else:
        idle = bare
    return EngineHistory(
        pid=use.pid,
        samples=samples,
        idle_bytes=max(idle, use.weights_bytes),
        rested=loaded and (rested or not use.busy),
        weights_bytes=use.weights_bytes,
        resting_since_seconds=since_seconds,
        hot_bytes=use.hot_bytes,
    )


def _still_counted(samples: tuple[Sample, ...], now: float) -> tuple[Sample, ...]:
    """Return the last few samples, and more where those lie within a moment."""
    older, newest = samples[:-HIGH_WATER_SAMPLES], samples[-HIGH_WATER_SAMPLES:]
    return (*(one for one in older if now - one.at_seconds < HIGH_WATER_SECONDS), *newest)


def _has_rested(samples: tuple[Sample, ...], since_seconds: float | None, now: float) -> bool:
    """Return whether a rest has lasted long enough, and been seen often enough, to be believed."""
    if since_seconds is None or len(samples) < HIGH_WATER_SAMPLES:
        return False
    lasted = now - since_seconds >= HIGH_WATER_SECONDS
    return lasted and samples[-HIGH_WATER_SAMPLES].at_seconds >= since_seconds


def next_reading(
    previous: MemoryReading | None, host: HostMemory, uses: tuple[EngineUse, ...], now: float
) -> MemoryReading:
    """Return the reading after one more sample; engines that are not in it are gone.

    `now` are seconds of any clock that does not go back.
    """
    known = {} if previous is None else previous.engines
    engines = {use.engine: _next_history(known.get(use.engine), use, now) for use in uses}
    told = [use.recommended_working_set_bytes for use in uses if use.recommended_working_set_bytes]
    before = None if previous is None else previous.recommended_working_set_bytes
    return MemoryReading(host, engines, min(told) if told else before)
