"""How fast one engine feeds prompts and decodes, as moving averages.

Prefill counts only real chunks, weighted by their size, so that tiny prompts (whose time is
all overhead) do not spoil the figure. Decode is the whole engine's, over busy heartbeats.
"""

import math

# A chunk of this many tokens moves the average by 63%.
_PREFILL_WEIGHT_TOKENS = 512
_DECODE_WEIGHT_SECONDS = 5.0


def blend(average: float, sample: float, weight: float) -> float:
    """Return the average moved towards a sample; the first sample is taken whole. Pure.

    Units: `weight` is how much evidence the sample is, 1 moving the average by 63%.
    """
    if average <= 0:
        return sample
    share = 1 - math.exp(-weight)
    return average + (sample - average) * share


class RateMeter:
    """The rates of one engine process."""

    def __init__(self) -> None:
        self.prefill_tokens_per_second = 0.0
        self.decode_tokens_per_second = 0.0
        self._tokens = 0

    def note_prefill(self, chunk_tokens: int, seconds: float) -> None:
        """Take in one row's share of a chunk."""
        if seconds <= 0 or chunk_tokens <= 0:
            return
        self.prefill_tokens_per_second = blend(
            self.prefill_tokens_per_second,
            chunk_tokens / seconds,
            chunk_tokens / _PREFILL_WEIGHT_TOKENS,
        )

    def note_tokens(self, count: int) -> None:
        """Take in decoded tokens."""
        self._tokens += count

    def note_interval(self, seconds: float) -> None:
        """Close an interval, at a heartbeat; an idle one says nothing about speed."""
        if seconds > 0 and self._tokens:
            self.decode_tokens_per_second = blend(
                self.decode_tokens_per_second,
                self._tokens / seconds,
                seconds / _DECODE_WEIGHT_SECONDS,
            )
        self._tokens = 0
