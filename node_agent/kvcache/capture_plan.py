"""Where a running sequence is captured into blocks, and where snapshots are taken.

Owns the decision only; pure. The engine asks before a prefill, cuts its chunks at the ends where a
snapshot is wanted, and asks again at block ends while it decodes and when a request ends.
"""

from dataclasses import dataclass

from node_agent.kvcache.layer_kinds import CacheLayout


@dataclass(frozen=True, slots=True)
class Capture:
    """Store the block that ends after `end_tokens` tokens, with a snapshot or without.

    A capture with a snapshot can be taken only while every layer stands exactly at `end_tokens`;
    one without can be cut out of sliceable layers at any later time.
    """

    end_tokens: int
    snapshot: bool


@dataclass(frozen=True, slots=True)
class CaptureRules:
    """Units: `snapshot_budget_bytes` bounds the snapshots of one prefill."""

    block_tokens: int
    snapshot_budget_bytes: int


def plan_captures(
    layout: CacheLayout, rules: CaptureRules, prompt_tokens: int, restored_tokens: int
) -> tuple[Capture, ...]:
    """Return the captures of a prefill, in order.

    Every block end after what was restored is captured, and the last token but one, so that the
    same prompt again feeds one token and not up to a block. Where snapshots of all ends would
    pass the budget, the last two ends keep theirs and the others are thinned evenly.
    """
    size, last = rules.block_tokens, prompt_tokens - 1
    ends = list(range((restored_tokens // size + 1) * size, last + 1, size))
    if last > restored_tokens and last % size:
        ends.append(last)
    if not layout.snapshot_mask:
        return tuple(Capture(end, snapshot=False) for end in ends)
    chosen = _spread(ends, _affordable(layout, rules))
    captures = (Capture(end, snapshot=end in chosen) for end in ends)
    # Of layers that only have snapshots, a block without one is empty; a partial block that
    # nothing can start from is of no use either.
    return tuple(
        x for x in captures if x.snapshot or (layout.needs_chain and not x.end_tokens % size)
    )


def plan_capture_now(
    layout: CacheLayout, rules: CaptureRules, fed_tokens: int, finished: bool
) -> Capture | None:
    """Return the capture due while decoding, with `fed_tokens` in every layer; None for none.

    At each block end, and once more where a request ends: the next turn of the conversation
    starts from there.
    """
    due = fed_tokens > 0 and (finished or fed_tokens % rules.block_tokens == 0)
    if not due:
        return None
    if not layout.snapshot_mask:
        return Capture(fed_tokens, snapshot=False)
    if layout.snapshot_bytes <= rules.snapshot_budget_bytes:
        return Capture(fed_tokens, snapshot=True)
    full = fed_tokens % rules.block_tokens == 0
    return Capture(fed_tokens, snapshot=False) if layout.needs_chain and full else None


def _affordable(layout: CacheLayout, rules: CaptureRules) -> int:
    return rules.snapshot_budget_bytes // max(1, layout.snapshot_bytes)


def _spread(ends: list[int], count: int) -> frozenset[int]:
    """Return at most `count` of the ends: the last two first, then evenly from the rest."""
    if count >= len(ends):
        return frozenset(ends)
    late = ends[len(ends) - min(2, count) :]
    rest, more = ends[: len(ends) - len(late)], count - len(late)
    even = (rest[(number + 1) * len(rest) // (more + 1) - 1] for number in range(more))
    return frozenset((*late, *even))
