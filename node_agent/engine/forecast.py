"""What the next chunk of a row will take, and how wrong that was so far.

Pure: the shared estimator's arithmetic for one chunk, and a correction learned from measured
ones. The gate multiplies the first by the second; the agent learns its own from ChunkMeasured,
which carries the uncorrected prediction.
"""

from dataclasses import dataclass

from manifests.estimate import (
    CACHE_STEP_TOKENS,
    FLOAT_BYTES,
    LOGITS_COPIES,
    ModelShape,
    PrefillCase,
    estimate_kv_bytes,
    estimate_prefill,
)
from node_agent.engine.rows import JoinCost

# One measured chunk moves the slow average by this much.
LEARNING_RATE = 0.3
# No chunk may make the next ones look more than this much bigger than the arithmetic says.
MAX_FACTOR = 4.0
# A chunk that was not run teaches nothing, so what made it look too big fades each time.
EASING = 0.8
# Predictions below this are dominated by what the allocator rounds up to.
MIN_LEARNED_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class Forecast:
    """The arithmetic for one model on one device. Units: tokens in, bytes out."""

    shape: ModelShape
    fused: bool

    def chunk_bytes(self, held_tokens: int, chunk_tokens: int) -> int:
        """Return what a chunk adds over what is held: its KV, and what comes and goes."""
        return self._rest_bytes(held_tokens, held_tokens + chunk_tokens, chunk_tokens)

    def finish_bytes(self, held_tokens: int, total_tokens: int, chunk_tokens: int) -> int:
        """Return what feeding the rest of a prompt adds, at its worst moment."""
        return self._rest_bytes(held_tokens, total_tokens, chunk_tokens)

    def join_bytes(self, cost: JoinCost) -> int:
        """Return what a row's last token takes: its place in the batch, and the logits."""
        logits_bytes = cost.rows * self.shape.vocab_size * LOGITS_COPIES * FLOAT_BYTES
        return cost.added_bytes + cost.copied_bytes + logits_bytes

    def _rest_bytes(self, held_tokens: int, end_tokens: int, chunk_tokens: int) -> int:
        case = PrefillCase(
            prompt_tokens=end_tokens, cached_tokens=held_tokens, chunk_tokens=chunk_tokens
        )
        parts = estimate_prefill(self.shape, case, fused=self.fused)
        kv_bytes = self._kv_bytes(end_tokens, chunk_tokens)
        if held_tokens:
            kv_bytes = max(0, kv_bytes - self._kv_bytes(held_tokens, chunk_tokens))
        return kv_bytes + parts.scores_bytes + parts.activations_bytes + parts.growth_bytes

    def _kv_bytes(self, tokens: int, chunk_tokens: int) -> int:
        # Chunks are cut so that buffers stay at whole steps, whatever their own length.
        width = min(CACHE_STEP_TOKENS, 1 << (chunk_tokens - 1).bit_length())
        if chunk_tokens > CACHE_STEP_TOKENS:
            width = -(-chunk_tokens // CACHE_STEP_TOKENS) * CACHE_STEP_TOKENS
        return estimate_kv_bytes(self.shape, tokens, chunk_tokens=width)


@dataclass(frozen=True, slots=True)
class Correction:
    """How much bigger chunks are than predicted: the last one and a slow average.

    `factor` is the larger of the two, never below 1 and never above MAX_FACTOR, so one good
    chunk makes nobody bold and one bad measurement does not shut the door.
    """

    last_ratio: float = 1.0
    mean_ratio: float = 1.0

    @property
    def factor(self) -> float:
        """What predictions are multiplied by."""
        return max(1.0, self.last_ratio, self.mean_ratio)

    def observed(self, predicted_bytes: int, actual_bytes: int) -> "Correction":
        """Return the correction after one measured chunk."""
        if predicted_bytes < MIN_LEARNED_BYTES:
            return self
        ratio = min(MAX_FACTOR, actual_bytes / predicted_bytes)
        mean = self.mean_ratio + LEARNING_RATE * (ratio - self.mean_ratio)
        return Correction(last_ratio=ratio, mean_ratio=mean)

    def eased(self) -> "Correction":
        """Return the correction after a chunk that could not be run, so it cannot latch."""
        return Correction(
            last_ratio=1 + max(0.0, self.last_ratio - 1) * EASING,
            mean_ratio=1 + max(0.0, self.mean_ratio - 1) * EASING,
        )

    def apply(self, predicted_bytes: int) -> int:
        """Return a prediction as the gate believes it."""
        return int(predicted_bytes * self.factor)
