"""Which prompts are fed together, one forward pass for a chunk of each. Pure.

While nobody decodes, prompts that came at about the same time walk together: all of them are
through when the last would have been through anyway, and then they decode in one batch. Fed one
after the other the first ones would decode meanwhile, and every step of theirs would cost the
others a pass over all weights and narrow their chunks. The feeding line asks before each chunk,
admission before it lets a prompt in.
"""

from collections.abc import Sequence
from dataclasses import dataclass

# Who walks with others is through no later than this, as far as is known.
TOGETHER_SECONDS = 30.0
# One that stands this much ahead waits until the others have caught up.
CATCH_UP_SECONDS = 1.0
# A pass over all of them takes about this long at most, so that commands are heard.
PASS_SECONDS = 2.0
# Prompts do not walk together when one is this much longer than another.
MAX_LENGTH_RATIO = 1.25
# Short ones are through in a pass of their own.
MIN_TOGETHER_TOKENS = 128
MAX_TOGETHER_ROWS = 8
# A chunk of each row is no narrower.
MIN_SHARE_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Prefilling:
    """A prompt that is being fed, or may be. Units: tokens.

    `tokens` are to be fed in all, from where it started; it stands at `at_tokens` now.
    """

    tokens: int
    priority: int = 0
    at_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Reach:
    """What can be fed in the times above. Units: tokens. Zeros: nobody may walk with others."""

    together_tokens: int = 0
    catch_up_tokens: int = 0
    pass_tokens: int = 0


NOBODY = Reach()


@dataclass(frozen=True, slots=True)
class Walkers:
    """The places of the rows that are fed next, and how far at most. Units: tokens of each row."""

    places: tuple[int, ...] = ()
    limit_tokens: int = 0


def can_walk_together(rows: Sequence[Prefilling], reach: Reach) -> bool:
    """Return whether all of these prompts may be fed together."""
    lengths, standing = [row.tokens for row in rows], [row.at_tokens for row in rows]
    return (
        2 <= len(rows) <= MAX_TOGETHER_ROWS
        and len({row.priority for row in rows}) == 1
        and max(standing) - min(standing) <= reach.catch_up_tokens
        and min(lengths) >= MIN_TOGETHER_TOKENS
        and max(lengths) <= MAX_LENGTH_RATIO * min(lengths)
        and sum(lengths) <= reach.together_tokens
    )


def choose_walkers(rows: Sequence[Prefilling], reach: Reach, chunk_tokens: int) -> Walkers:
    """Return who of those that walk with the first is fed next: the hindmost, up to the others.

    No chunk is wider than `chunk_tokens`. Nobody when the first walks alone.
    """
    chosen = [0]
    for place in range(1, len(rows)):
        if can_walk_together([rows[one] for one in (*chosen, place)], reach):
            chosen.append(place)
    if len(chosen) < 2:
        return Walkers()
    hindmost = min(rows[place].at_tokens for place in chosen)
    places = tuple(place for place in chosen if rows[place].at_tokens == hindmost)
    share_tokens = max(MIN_SHARE_TOKENS, reach.pass_tokens // len(places))
    gaps = [rows[place].at_tokens - hindmost for place in chosen if place not in places]
    return Walkers(places, min(chunk_tokens, share_tokens, *gaps))
