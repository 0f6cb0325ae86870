"""Whether an engine that has ended left its memory behind, wired by the kernel.

Pure. Fed by the monitor with wired memory before and after an engine's end. macOS can strand
wired memory of a killed process until the next boot; then the node needs one, and starting the
same model again would only strand more. Units: bytes; seconds of the agent's monotonic clock.
Source: omlx#2184, omlx#2855 (414 GiB after a SIGKILL on macOS 26.5).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

SETTLE_SECONDS = 30.0
LEAST_BYTES = 2 << 30
_SHARE_RATIO = 0.5


@dataclass(frozen=True, slots=True)
class Stranded:
    """An engine that ended, what it held, and what was wired just before."""

    engine: str
    held_bytes: int
    wired_before_bytes: int
    gone_at: float
    proven: bool = False


@dataclass(frozen=True, slots=True)
class WiredHistory:
    """What was seen so far; `base_bytes` is wired memory without any engine of ours."""

    base_bytes: int | None = None
    wired_bytes: int | None = None
    held: Mapping[tuple[str, int], int] | None = None
    ended: tuple[Stranded, ...] = ()

    @property
    def proven(self) -> tuple[Stranded, ...]:
        """The ends after which memory did not come back."""
        return tuple(item for item in self.ended if item.proven)


def next_wired_history(
    history: WiredHistory, wired_bytes: int | None, held: Mapping[tuple[str, int], int], now: float
) -> WiredHistory:
    """Return the history after one sample; `held` is keyed by engine and process id.

    Memory counts as stranded when, long enough after the end, more is wired than the system and
    all living engines account for, and it has not fallen by half of what the engine held. It is
    forgiven as soon as the memory does come back.
    """
    if wired_bytes is None:
        return WiredHistory()
    before = {} if history.held is None else history.held
    ended = list(history.ended)
    if history.wired_bytes is not None:
        ended += [
            Stranded(engine, size, history.wired_bytes, now)
            for (engine, pid), size in before.items()
            if (engine, pid) not in held
        ]
    base = history.base_bytes
    if not held and not ended:
        base = wired_bytes
    unaccounted = 0 if base is None else wired_bytes - base - sum(held.values())
    kept = []
    for item in ended:
        back = wired_bytes + int(_SHARE_RATIO * item.held_bytes) <= item.wired_before_bytes
        if back or unaccounted < max(LEAST_BYTES, int(_SHARE_RATIO * item.held_bytes)):
            continue
        kept.append(replace(item, proven=item.proven or now - item.gone_at >= SETTLE_SECONDS))
    return WiredHistory(base, wired_bytes, dict(held), tuple(kept))
