"""Which rows are decoded in one batch. Pure; called by `batch.py`.

mlx-lm pads every row of a batch to the longest: a row of 100 tokens beside one of 30,000 costs
the KV of 30,000. So rows of very unequal length are kept in batches of their own, which costs a
forward pass for each batch instead. Measured with SmolLM2 fp32 on mlx-lm 0.32.2, 2026-11-28: a
row of 100 tokens (4.6 MB of KV) that joins one of 1,500 adds 64 MB.
"""

from collections.abc import Sequence

# Padding up to this much of what the rows really hold is allowed: promises are made for whole
# rows and include one margin, so this is what may be held beyond them.
MAX_PADDING_RATIO = 0.25
# Padding below one step of the cache is there anyway.
FREE_PADDING_TOKENS = 256


def can_share(lengths_tokens: Sequence[int]) -> bool:
    """Return whether rows that hold these tokens may be decoded in one batch."""
    longest = max(lengths_tokens)
    useful_tokens = sum(lengths_tokens)
    padding_tokens = len(lengths_tokens) * longest - useful_tokens
    return (
        longest - min(lengths_tokens) <= FREE_PADDING_TOKENS
        or padding_tokens <= MAX_PADDING_RATIO * useful_tokens
    )


def choose_group(groups_tokens: Sequence[Sequence[int]], row_tokens: int) -> int | None:
    """Return the batch that a row joins with the least padding, or None for one of its own.

    Each batch is the lengths of its rows.
    """
    best: tuple[int, int] | None = None
    for index, lengths in enumerate(groups_tokens):
        if not can_share([*lengths, row_tokens]):
            continue
        longest = max(lengths)
        added_tokens = max(longest, row_tokens) * (len(lengths) + 1) - longest * len(lengths)
        if best is None or (added_tokens, index) < best:
            best = (added_tokens, index)
    return None if best is None else best[1]
