"""What each engine may hold, and whose turn it is to feed prompts.

Pure: figures in, figures out. The publisher sends the result to the engines. Units: bytes,
seconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from node_agent.engine.messages import Limits

SLICE_SECONDS = 1.0
# Budgets move by the byte; sending every move would only make noise.
STEP_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class EngineStanding:
    """One engine's part of the node's memory.

    `used_bytes` is its short high-water mark as the node counts it; `overhead_bytes` is the part
    of it that MLX does not see (interpreter, libraries); `promised_bytes` is still to come.
    """

    used_bytes: int
    overhead_bytes: int
    promised_bytes: int
    margin_bytes: int
    min_chunk_tokens: int


def plan_budgets(engines: Mapping[str, EngineStanding], abort_bytes: int) -> dict[str, int]:
    """Return the most MLX memory each engine may hold: what it has, what it is promised, a margin.

    When the lasting ceiling has fallen below what is used and promised, what has not yet been
    allocated shrinks in proportion: nothing that is held is taken away here.
    """
    used = sum(item.used_bytes for item in engines.values())
    promised = sum(item.promised_bytes for item in engines.values())
    excess = max(0, min(promised, used + promised - abort_bytes))
    kept_ratio = 1.0 if promised == 0 else 1.0 - excess / promised
    return {
        name: max(
            STEP_BYTES,
            item.used_bytes
            - item.overhead_bytes
            + int(item.promised_bytes * kept_ratio)
            + item.margin_bytes,
        )
        for name, item in engines.items()
    }


def round_budget(budget_bytes: int) -> int:
    """Return a budget in steps, rounded up by less than one step."""
    return -(-budget_bytes // STEP_BYTES) * STEP_BYTES


@dataclass(frozen=True, slots=True)
class Turns:
    """Which engines may feed prompts, and since when each has had its turn."""

    since: Mapping[str, float] = field(default_factory=dict)
    last: Mapping[str, float] = field(default_factory=dict)

    @property
    def holders(self) -> frozenset[str]:
        """The engines whose turn it is."""
        return frozenset(self.since)


def plan_turns(before: Turns, feeding: Sequence[str], concurrency: int, now: float) -> Turns:
    """Return whose turn it is among the engines with prompts to feed.

    An engine keeps its turn for a slice while others want one, longer when nobody does; the one
    whose last turn is longest ago goes next, so nobody starves.
    """
    wanting = set(feeding)
    last = dict(before.last)
    for name in before.since:
        last[name] = now
    contested = len(wanting) > concurrency
    kept = {
        name: since
        for name, since in before.since.items()
        if name in wanting and not (contested and now - since >= SLICE_SECONDS)
    }
    waiting = sorted(wanting - kept.keys(), key=lambda name: (last.get(name, -1.0), name))
    for name in waiting[: max(0, concurrency - len(kept))]:
        kept[name] = now
    return Turns(kept, {name: last[name] for name in last if name in wanting})


def plan_limits(
    engines: Mapping[str, EngineStanding], abort_bytes: int, turns: Turns, concurrency: int
) -> dict[str, Limits]:
    """Return what to send to each engine; a free turn is anybody's."""
    budgets = plan_budgets(engines, abort_bytes)
    free = len(turns.holders) < concurrency
    return {
        name: Limits(
            budget_bytes=round_budget(budgets[name]),
            margin_bytes=item.margin_bytes,
            min_chunk_tokens=item.min_chunk_tokens,
            prefill_turn=free or name in turns.holders,
        )
        for name, item in engines.items()
    }
