"""What kernel panics of this machine mean for it: how far its ceilings are lowered, until when.

Pure. A panic is ours when its report names a boot in which this agent ran; others' are none of
our business. Called by the panic watch. Units: seconds since the epoch.
"""

from dataclasses import dataclass, replace

from node_agent.host.base import KernelPanic, PanicScan

CLEAR_ANNOTATION = "mlxfleet.dev/clear-panic-history"
WINDOW_SECONDS = 14 * 86400.0
RATIO_PER_PANIC = 0.9
LEAST_RATIO = 0.7
_MOST_BOOTS = 100


@dataclass(frozen=True, slots=True)
class PanicHistory:
    """What the agent remembers across boots.

    `boots` are the boots it ran in, `panics` the ones that ended those; reports may be deleted,
    these stay. `cleared` are the boots whose panics a person has dealt with, by the annotation
    value `cleared_by`.
    """

    boots: tuple[str, ...] = ()
    panics: tuple[KernelPanic, ...] = ()
    cleared: tuple[str, ...] = ()
    cleared_by: str = ""


@dataclass(frozen=True, slots=True)
class PanicStanding:
    """The verdict: panics that count now, and the ratio of the ceilings that is left."""

    counting: tuple[KernelPanic, ...] = ()
    fault: str = ""

    @property
    def ceiling_ratio(self) -> float:
        """0.9 for each panic, 0.7 at least."""
        return max(LEAST_RATIO, RATIO_PER_PANIC ** len(self.counting))


def remember_boot(history: PanicHistory, boot_id: str) -> PanicHistory:
    """Note that the agent runs in this boot."""
    boot = boot_id.upper()
    if not boot or boot in history.boots:
        return history
    return replace(history, boots=(*history.boots, boot)[-_MOST_BOOTS:])


def take_in_scan(history: PanicHistory, scan: PanicScan, now: float) -> PanicHistory:
    """Add the panics that ended boots of ours; one without a date counts from now."""
    known = {panic.boot_id for panic in history.panics}
    new = tuple(
        replace(panic, epoch_seconds=panic.epoch_seconds or now)
        for panic in scan.panics
        if panic.boot_id in history.boots and panic.boot_id not in known
    )
    return replace(history, panics=(*history.panics, *new)) if new else history


def follow_annotation(history: PanicHistory, value: str) -> PanicHistory:
    """Clear what is known so far when a person sets the annotation to a new value.

    The same value clears nothing more, so a panic after it counts again.
    """
    if value == history.cleared_by:
        return history
    if not value:
        return replace(history, cleared_by="")
    boots = tuple(sorted({panic.boot_id for panic in history.panics}))
    return replace(history, cleared=boots, cleared_by=value)


def judge_panics(history: PanicHistory, fault: str, now: float) -> PanicStanding:
    """Return which panics count at this moment."""
    counting = tuple(
        panic
        for panic in sorted(history.panics, key=lambda item: item.epoch_seconds)
        if panic.boot_id not in history.cleared and now - panic.epoch_seconds < WINDOW_SECONDS
    )
    return PanicStanding(counting, fault)
