"""What the scheduler asks of the thing that runs rows through a model.

Plain values only, so the scheduler is tested without MLX. `batch.py` runs rows together,
`serial.py` one at a time for models whose caches cannot be merged.
"""

from dataclasses import dataclass
from typing import Protocol

from node_agent.engine.messages import Generate, TokenLogprobs


@dataclass(frozen=True, slots=True)
class PrefillStep:
    """One row's share of a prefill chunk. `seconds` is the row's part of the chunk's time."""

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
class StepResult:
    """What one step did."""

    prefills: tuple[PrefillStep, ...] = ()
    tokens: tuple[TokenStep, ...] = ()


class RowRunner(Protocol):
    """Runs inserted rows, one step at a time. Only the MLX thread calls it."""

    @property
    def max_rows(self) -> int:
        """How many rows it may hold at once."""
        ...

    @property
    def chunk_tokens(self) -> int:
        """The most prompt tokens one step feeds, over all rows together."""
        ...

    def insert(self, command: Generate) -> int:
        """Take a row in and return its uid. The command is already validated."""
        ...

    def remove(self, uid: int) -> None:
        """Drop a row between steps, wherever it is."""
        ...

    def step(self) -> StepResult:
        """Decode one token of each running row and feed at most one prefill chunk."""
        ...
