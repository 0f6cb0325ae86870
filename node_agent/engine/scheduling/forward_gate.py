"""May the next chunk run? Asked before every chunk and before a row joins the decode batch.

Pure: frozen readings in, one decision out. It never refuses the model, only one request, and it
always comes to an end: a chunk is reclaimed for once, a request asks and is requeued only so
often. Called by `gatekeeper.py`.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from manifests.units import format_bytes
from node_agent.engine.mailbox import MemoryGauges

MAX_ASKS = 3
MAX_REQUEUES = 2
WINDOW_STEPS = 3


@dataclass(frozen=True, slots=True)
class GateReading:
    """What the engine holds and may hold. Units: bytes, tokens. A budget of 0 is no limit."""

    high_water_bytes: int
    cache_bytes: int = 0
    budget_bytes: int = 0
    margin_bytes: int = 0
    min_chunk_tokens: int = 32

    @property
    def limited(self) -> bool:
        """Whether there is a budget."""
        return self.budget_bytes > 0

    @property
    def room_bytes(self) -> int:
        """What the next chunk may take; negative when too much is held already."""
        return self.budget_bytes - self.margin_bytes - self.high_water_bytes


@dataclass(frozen=True, slots=True)
class NextChunk:
    """What a row wants to run. Both functions are pure: tokens in, bytes out.

    `predict` is one chunk of that size; `finish` is all that is left, in chunks of that size.
    """

    wanted_tokens: int
    predict: Callable[[int], int]
    finish: Callable[[int], int]


@dataclass(frozen=True, slots=True)
class Attempts:
    """What was tried for a row.

    `reclaimed` is of this chunk, the counts are of the request. `waiting` means an Ask is not
    answered yet, `final` that the last answer was a lasting no, `alone` that no other row of
    this engine could give memory back.
    """

    reclaimed: bool = False
    waiting: bool = False
    asks: int = 0
    requeues: int = 0
    final: bool = False
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """Run the chunk as wanted."""


@dataclass(frozen=True, slots=True)
class Shrink:
    """Run a shorter chunk."""

    chunk_tokens: int


@dataclass(frozen=True, slots=True)
class Reclaim:
    """Give freed buffers back, read memory again and ask the gate again."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the agent for more; the row waits, others go on."""

    more_bytes: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Asked already; nothing to do until an answer, a new budget or freed memory."""


@dataclass(frozen=True, slots=True)
class Requeue:
    """Free what the row holds and start it again once another row has ended."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """End the request with this message."""

    message: str


Decision = Run | Shrink | Reclaim | Ask | Wait | Requeue | Refuse


def decide(reading: GateReading, chunk: NextChunk, attempts: Attempts) -> Decision:
    """Return what to do about a row's next chunk. Pure."""
    if not reading.limited:
        return Run()
    room_bytes = reading.room_bytes
    wanted_bytes = chunk.predict(chunk.wanted_tokens)
    if wanted_bytes <= room_bytes:
        return Run()
    reclaimable = reading.cache_bytes > 0 and not attempts.reclaimed
    if reclaimable and wanted_bytes <= room_bytes + reading.cache_bytes:
        return Reclaim()
    smaller_tokens = fit_chunk(chunk, room_bytes, reading.min_chunk_tokens)
    if smaller_tokens:
        return Shrink(smaller_tokens)
    if reclaimable:
        return Reclaim()
    if attempts.waiting:
        return Wait()
    least_tokens = min(chunk.wanted_tokens, max(1, reading.min_chunk_tokens))
    if attempts.asks < MAX_ASKS and not attempts.final:
        # First for what the rest needs at full speed; once denied, for what it needs at all.
        tokens = least_tokens if attempts.asks else chunk.wanted_tokens
        return Ask(max(1, chunk.finish(tokens) - room_bytes))
    if attempts.requeues < MAX_REQUEUES and not attempts.alone:
        return Requeue()
    return Refuse(_explain(reading, chunk.predict(least_tokens)))


def fit_chunk(chunk: NextChunk, room_bytes: int, min_chunk_tokens: int) -> int:
    """Return the longest chunk that fits and is shorter than wanted; 0 when none does.

    Never shorter than the minimum; predictions must not fall as chunks grow.
    """
    low, high = max(1, min_chunk_tokens), chunk.wanted_tokens - 1
    if high < low or chunk.predict(low) > room_bytes:
        return 0
    while low < high:
        middle = (low + high + 1) // 2
        if chunk.predict(middle) <= room_bytes:
            low = middle
        else:
            high = middle - 1
    return low


def _explain(reading: GateReading, need_bytes: int) -> str:
    total_bytes = reading.high_water_bytes + need_bytes + reading.margin_bytes
    total, budget = format_bytes(total_bytes), format_bytes(reading.budget_bytes)
    if total == budget:
        # Rounded alike; the numbers shown must still be the ones that were compared.
        total, budget = f"{total_bytes} bytes", f"{reading.budget_bytes} bytes"
    return (
        f"the next part of this prompt needs {total} of memory "
        f"({format_bytes(reading.high_water_bytes)} held, {format_bytes(need_bytes)} more and "
        f"a margin of {format_bytes(reading.margin_bytes)}), but this engine may hold {budget}"
    )


class HighWater:
    """The most that was held at the start of the last few steps.

    A reading taken right after buffers were freed is a trough: the next decode step takes them
    again. So the highest of a few counts, except for buffers that we gave back ourselves.
    """

    def __init__(self) -> None:
        self._recent: deque[MemoryGauges] = deque(maxlen=WINDOW_STEPS)

    def note(self, gauges: MemoryGauges) -> None:
        """Add the reading at a step's start."""
        self._recent.append(gauges)

    def forget_cache(self, given_bytes: int = 0) -> None:
        """The freed buffers are gone for good, and so much of what was active; the rest counts."""
        self._recent = deque(
            (
                MemoryGauges(max(0, one.active_bytes - given_bytes), 0, one.peak_bytes)
                for one in self._recent
            ),
            maxlen=WINDOW_STEPS,
        )

    def forget(self) -> None:
        """Nothing runs any more, so what was held then says nothing about what comes."""
        self._recent.clear()

    def over(self, now: MemoryGauges) -> int:
        """Return the high-water mark, the present included. Units: bytes."""
        return max(one.active_bytes + one.cache_bytes for one in (now, *self._recent))
