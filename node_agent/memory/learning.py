"""What an engine's prefills really took beside the prediction, and what is learned from it.

`learn` is pure; `Lessons` keeps one `Learned` an engine, by which the arbiter scales later
admissions. Units: bytes.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

EWMA_WEIGHT = 0.3
DECAY_WEIGHT = 0.1
MOST_RATIO = 3.0
OUTLIER_RATIO = 8.0
LEAST_PREDICTED_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Learned:
    """The ratio by which an engine's transients are scaled, never below 1.

    `greatest_ratio` is the largest measured over predicted peak ever seen, for people.
    """

    ratio: float = 1.0
    greatest_ratio: float = 0.0
    chunks: int = 0


def learn(before: Learned, predicted_bytes: int, actual_bytes: int) -> Learned:
    """Return what is known after one more measured chunk.

    A chunk above the prediction raises the ratio at once; chunks below it bring it back to 1, so
    that one bad reading cannot latch. A ratio beyond any plausible transient is a reading of
    something else (another row's memory) and counts for the record only. Tiny chunks are noise.
    """
    if predicted_bytes < LEAST_PREDICTED_BYTES:
        return before
    measured = actual_bytes / predicted_bytes
    greatest = max(before.greatest_ratio, measured)
    if measured > OUTLIER_RATIO:
        return Learned(before.ratio, greatest, before.chunks + 1)
    if measured > before.ratio:
        smoothed = before.ratio + EWMA_WEIGHT * (measured - before.ratio)
        ratio = max(measured, smoothed)
    else:
        ratio = before.ratio + DECAY_WEIGHT * (measured - before.ratio)
    return Learned(min(MOST_RATIO, max(1.0, ratio)), greatest, before.chunks + 1)


class Lessons:
    """What each engine's prefills have taught."""

    def __init__(self) -> None:
        self._learned: dict[str, Learned] = {}

    def of(self, engine: str) -> Learned:
        """Return what is known of an engine; nothing yet means a ratio of 1."""
        return self._learned.get(engine, Learned())

    def note(self, engine: str, predicted_bytes: int, actual_bytes: int) -> None:
        """Take in one measured chunk."""
        self._learned[engine] = learn(self.of(engine), predicted_bytes, actual_bytes)

    def retain(self, engines: AbstractSet[str]) -> None:
        """Forget engines that are gone."""
        self._learned = {name: it for name, it in self._learned.items() if name in engines}
