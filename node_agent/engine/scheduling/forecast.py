"""What the next chunk of a row will take, and how wrong that was so far.

Pure: the shared estimator's arithmetic for one chunk, and a correction learned from measured
ones. The gate multiplies the first by the second; the agent learns its own from ChunkMeasured,
which carries the uncorrected prediction.
"""

from dataclasses import dataclass

from manifests.sizing.estimate import (
    FLOAT_BYTES,
    LOGITS_COPIES,
    ModelShape,
    PrefillCase,
    estimate_chunk,
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
# Places whose logits are picked from at the same time, besides those of the rows: MLX frees some
# operations behind what it computes. Measured with SmolLM2-135M fp32, rows that draw unfiltered,
# 2026-11-28: 7 copies of a row's logits for one row, 13 for two, 31 for eight.
SPARE_PLACES = 2
# Penalties and filters take what the logits of so many more places do, for each row that has any:
# equal samplers run over all rows at once. Measured likewise with all of them: 25 copies for one
# row, 44 for two, 128 for eight; where each row has a seed of its own 57 for eight, but rows
# with a common sampler may be left by those that had others.
FILTER_PLACES = 4
# Predictions below this are dominated by what the allocator rounds up to.
MIN_LEARNED_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class Forecast:
    """The arithmetic for one model on one device. Units: tokens in, bytes out."""

    shape: ModelShape
    fused: bool

    def chunk_bytes(self, held_tokens: int, chunk_tokens: int) -> int:
        """Return what a chunk adds over what is held: its KV, and what comes and goes."""
        return estimate_chunk(
            self.shape, held_tokens=held_tokens, chunk_tokens=chunk_tokens, fused=self.fused
        )

    def finish_bytes(self, held_tokens: int, total_tokens: int, chunk_tokens: int) -> int:
        """Return what feeding the rest of a prompt adds, at its worst moment."""
        case = PrefillCase(
            prompt_tokens=total_tokens, cached_tokens=held_tokens, chunk_tokens=chunk_tokens
        )
        held_bytes = estimate_kv_bytes(self.shape, held_tokens, chunk_tokens=0)
        peak_bytes = estimate_prefill(self.shape, case, fused=self.fused).peak_bytes
        next_bytes = self.chunk_bytes(held_tokens, min(chunk_tokens, total_tokens - held_tokens))
        return max(next_bytes, peak_bytes - (held_bytes if held_tokens else 0))

    def logits_bytes(self, held_tokens: int, chunk_tokens: int, total_tokens: int) -> int:
        """Return what the logits of a chunk take: nothing before a prompt's last token."""
        if held_tokens + chunk_tokens < total_tokens:
            return 0
        return chunk_tokens * self.shape.vocab_size * FLOAT_BYTES

    def verify_bytes(self, held_tokens: int, width_tokens: int) -> int:
        """Return what a decode pass over so many tokens takes: as a chunk, and all their logits."""
        picking_bytes = self._picking_bytes(width_tokens, filtered=1)
        return self.chunk_bytes(held_tokens, width_tokens) + picking_bytes

    def join_bytes(self, cost: JoinCost) -> int:
        """Return what a row's last token takes: its place in the batch, and the logits."""
        picking_bytes = self._picking_bytes(cost.rows, filtered=cost.filtered_rows)
        return cost.added_bytes + cost.copied_bytes + picking_bytes

    def _picking_bytes(self, places: int, *, filtered: int) -> int:
        """Return what picking a token at each place takes; so many rows have filters."""
        places += SPARE_PLACES + FILTER_PLACES * filtered
        return places * self.shape.vocab_size * LOGITS_COPIES * FLOAT_BYTES


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
