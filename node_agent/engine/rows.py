"""What the scheduler asks of the thing that runs rows through a model, and of memory.

Plain values only, so the scheduler is tested without MLX. `batch.py` runs rows together,
`serial.py` one at a time for models whose caches cannot be merged; `meter.py` is the memory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from node_agent.engine.mailbox import MemoryGauges
from node_agent.engine.messages import Generate, TokenLogprobs


@dataclass(frozen=True, slots=True)
class PrefillStep:
    """One chunk of one row. `seconds` is how long it took."""

    uid: int
    done_tokens: int
    total_tokens: int
    chunk_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class TokenStep:
    """One new token of one row; `finish` is stop, length or None."""

    uid: int
    token: int
    finish: str | None = None
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class RestoreStep:
    """What a row was started from; 0 tokens when the stored blocks were gone after all.

    Units: `seconds` is how long reading the blocks and building the row's cache took.
    """

    uid: int
    tokens: int = 0
    hot_blocks: int = 0
    ssd_blocks: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class PrefixPlan:
    """What a prompt could start from, and the blocks it would then have to compute.

    `missing` are digests, in order, of blocks that another row could start from once they are
    stored.
    """

    cached_tokens: int = 0
    missing: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class JoinCost:
    """What a row's last token takes, when it joins those being decoded. Units: bytes, rows.

    `added_bytes` stay: the padding that rows of unequal length need. `copied_bytes` come and
    go: one layer of the batch exists twice while it is put together anew. `filtered_rows` of the
    rows have filters or penalties, which work on copies of their logits.
    """

    rows: int = 1
    added_bytes: int = 0
    copied_bytes: int = 0
    filtered_rows: int = 0


@dataclass(frozen=True, slots=True)
class DraftPass:
    """A pass over the next token of a row that decodes alone and those drafted behind it."""

    held_tokens: int
    width_tokens: int


@dataclass(slots=True)
class DraftTally:
    """How many tokens were drafted and verified since the model was loaded, how many came true."""

    drafted_tokens: int = 0
    accepted_tokens: int = 0


HasRoom = Callable[[DraftPass], bool]


def never(_wish: DraftPass) -> bool:
    """Return that there is no room: nothing is drafted."""
    return False


class PromptFeeding(Protocol):
    """One row's prompt on its way into a cache of its own."""

    @property
    def fed_tokens(self) -> int:
        """How many prompt tokens the row's cache holds."""
        ...

    def restore_bytes(self) -> int | None:
        """Return what starting from stored blocks still takes; 0 when there is no need.

        None while it is not known: the row is to be asked again.
        """
        ...

    def restore(self, uid: int, wait_seconds: float) -> RestoreStep | None:
        """Do a piece of the start from stored blocks; None while there is more to do.

        Nothing has been fed yet. It waits so long for blocks at most.
        """
        ...

    def start_cold(self) -> None:
        """Start from nothing, though there are stored blocks."""
        ...

    def next_chunk_tokens(self, limit_tokens: int) -> int:
        """Return what the next chunk would feed; 0 when at most the last token is left.

        A short last chunk has the last token too.
        """
        ...

    def feed(self, uid: int, chunk_tokens: int) -> PrefillStep:
        """Feed the next chunk, as long as `next_chunk_tokens` said."""
        ...


class RowRunner(Protocol):
    """Runs inserted rows. Only the MLX thread calls it."""

    @property
    def max_rows(self) -> int:
        """How many rows it may hold at once."""
        ...

    @property
    def draft_tally(self) -> DraftTally:
        """What came of drafts."""
        ...

    @property
    def chunk_tokens(self) -> int:
        """The most prompt tokens of one row that a pass feeds."""
        ...

    def insert(self, command: Generate) -> int:
        """Take a row in and return its uid. The command is already validated."""
        ...

    def remove(self, uid: int, *, keep: bool = False) -> None:
        """Drop a row between steps, wherever it is; with `keep` its prefix is stored first."""
        ...

    def prompt(self, uid: int) -> PromptFeeding:
        """Return the prompt of a row that has not joined yet."""
        ...

    def lockstep_bytes(self, uids: Sequence[int]) -> int | None:
        """Return what feeding these rows together takes besides their chunks.

        None when they cannot be: they do not stand at the same token, or their caches differ.
        """
        ...

    def feed_together(self, uids: Sequence[int], chunk_tokens: int) -> tuple[PrefillStep, ...]:
        """Feed each of these rows its next chunk, none of them its last token, in one pass.

        They hold one cache in common until `part`, or until one of them is fed alone, joins or
        is removed.
        """
        ...

    def compact(self) -> bool:
        """Give back what rows that ended still hold; False when they hold nothing."""
        ...

    def part(self) -> None:
        """Give rows that were fed together caches of their own."""
        ...

    def join_cost(self, uid: int, *, apart: bool) -> JoinCost:
        """Return what `join` would take."""
        ...

    def join(self, uid: int, *, apart: bool) -> PrefillStep:
        """Decode a row from now on, with others or in its own batch.

        Its last token is fed with the next step of `decode` if it is not fed yet; the returned
        step says whether.
        """
        ...

    def first_tokens(self) -> tuple[TokenStep, ...]:
        """Return first tokens that are known already; `decode` does not return them again."""
        ...

    def decode(self, has_room: HasRoom = never) -> tuple[TokenStep, ...]:
        """Decode one token of each row that has joined.

        A row that has just joined without its last token is fed it here. One that decodes alone
        may have drafted tokens verified in the same pass, if that has room, and says those that
        come true, too.
        """
        ...


class Prefixes(Protocol):
    """The stored prefixes as admission sees them. Only the MLX thread calls it."""

    def plan(self, command: Generate) -> PrefixPlan:
        """Return what a request's prompt could start from now."""
        ...

    def take_done(self) -> tuple[tuple[str, bytes], ...]:
        """Return request and digest of the blocks computed since the last call."""
        ...


class Memory(Protocol):
    """MLX's memory as the scheduler sees it. Units: bytes."""

    def read(self) -> MemoryGauges:
        """Return what is held now."""
        ...

    def clear(self) -> None:
        """Give freed buffers back to the system."""
        ...

    def begin_chunk(self) -> None:
        """Start measuring."""
        ...

    def end_chunk(self) -> int:
        """Return the peak since `begin_chunk`, over what was active then."""
        ...
