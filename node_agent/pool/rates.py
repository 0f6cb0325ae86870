"""How fast one engine feeds prompts and decodes, as moving averages.

Prefill counts only real chunks, weighted by their size, so that tiny prompts (whose time is
all overhead) do not spoil the figure. Decode is one request's, from its tokens' distances: neither
idle time nor the number of rows at once is in it, nor prompts that are fed meanwhile. Called by the
engine's run.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

# So many tokens move the average by 63%.
_PREFILL_WEIGHT_TOKENS = 512.0
_DECODE_WEIGHT_TOKENS = 64.0
# What was measured longer ago than this counts for little beside what is measured now.
_FORGET_SECONDS = 60.0
# Less evidence than this is no rate yet: a process's first chunk is slow whatever the machine.
_ENOUGH = 0.2


@dataclass(frozen=True, slots=True)
class Average:
    """A mean of samples and the evidence behind it, from 0 (none) to 1."""

    value: float = 0.0
    evidence: float = 0.0
    at_seconds: float = 0.0

    @property
    def enough(self) -> bool:
        """Whether there is enough behind it to be told."""
        return self.evidence >= _ENOUGH and self.value > 0


NOTHING_MEASURED = Average()


def blend(average: Average, sample: float, weight: float, now: float) -> Average:
    """Return the average with one more sample; each counts by its weight, the old ever less. Pure.

    Units: `weight` is how much evidence the sample is, 1 leaving 37% of what was before. So a
    first, cold sample is outweighed by the next ones instead of lasting.
    """
    fade = math.exp(-weight)
    idle_seconds = max(0.0, now - average.at_seconds)
    old = average.evidence * fade * math.exp(-idle_seconds / _FORGET_SECONDS)
    new = 1 - fade
    if old + new <= 0:
        return average
    # Waiting takes nothing from what is known, only from its share in what follows.
    evidence = average.evidence * fade + new
    return Average((average.value * old + sample * new) / (old + new), evidence, now)


class RateMeter:
    """The rates of one engine process; 0 is one that is not known yet."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` tells monotonic seconds."""
        self._clock = clock
        self._prefill = NOTHING_MEASURED
        self._depth = NOTHING_MEASURED
        self._decode = NOTHING_MEASURED
        self._last_token: dict[str, float] = {}

    @property
    def prefill_tokens_per_second(self) -> float:
        """Prompt tokens a second of computing."""
        return self._prefill.value if self._prefill.enough else 0.0

    @property
    def prefill_context_tokens(self) -> float:
        """How many tokens lay before those that the prefill rate was measured with."""
        return self._depth.value

    @property
    def decode_tokens_per_second(self) -> float:
        """Tokens a second that one request gets."""
        return 1 / self._decode.value if self._decode.enough else 0.0

    def note_prefill(self, chunk_tokens: int, seconds: float, done_tokens: int = 0) -> None:
        """Take in one row's share of a chunk, after which so much of its prompt is done."""
        # While a prompt is fed the others wait for their next token: that is not decode's speed.
        self._last_token.clear()
        if seconds <= 0 or chunk_tokens <= 0:
            return
        weight = chunk_tokens / _PREFILL_WEIGHT_TOKENS
        now, before = self._clock(), max(0.0, done_tokens - chunk_tokens / 2)
        self._prefill = blend(self._prefill, chunk_tokens / seconds, weight, now)
        self._depth = blend(self._depth, before, weight, now)

    def note_tokens(self, request_id: str, count: int) -> None:
        """Take in a request's new tokens; its first ones only begin the measurement."""
        now = self._clock()
        before = self._last_token.get(request_id)
        self._last_token[request_id] = now
        if before is not None and count > 0:
            # Averaged as seconds: what comes in one read has no distance, and no rate.
            weight = count / _DECODE_WEIGHT_TOKENS
            self._decode = blend(self._decode, (now - before) / count, weight, now)

    def note_end(self, request_id: str) -> None:
        """Forget a request that has ended."""
        self._last_token.pop(request_id, None)
