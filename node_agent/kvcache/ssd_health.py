"""Whether the disk tier can be used, why not, and when it is tried again.

Owns the state and its transitions; pure apart from the exception it defines. The store applies
them; the engine reports the state, and the agent makes a Node condition of it.
"""

import errno
import sqlite3
from dataclasses import dataclass, replace
from enum import StrEnum

FIRST_RETRY_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 60.0


class TierReason(StrEnum):
    """Why the tier is as it is; CamelCase, fit to be a condition's reason."""

    READY = "Ready"
    STARTING = "Starting"
    CLOSED = "Closed"
    MISSING = "DirectoryMissing"
    ABSENT = "VolumeAbsent"
    UNUSABLE = "DirectoryUnusable"
    READ_ONLY = "ReadOnly"
    FULL = "DiskFull"
    IO_ERROR = "DiskError"
    INDEX = "IndexDamaged"
    BUSY = "IndexBusy"
    HANGING = "DiskNotResponding"


class TierFault(Exception):  # noqa: N818 - it says what befell the tier; not every one is an error
    """The disk cannot be used just now."""

    def __init__(self, reason: TierReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(frozen=True, slots=True)
class TierState:
    """The tier's condition.

    A full disk is still readable. `failures` counts in a row and sets the pace of retries.
    `private` is False on a volume that keeps no file modes. Of a full disk `refused_bytes` is the
    most that did not fit, and `free_bytes` what the volume said it had then. Units: seconds of the
    clock given.
    """

    reason: TierReason = TierReason.STARTING
    message: str = ""
    readable: bool = False
    writable: bool = False
    retry_at_seconds: float = 0.0
    failures: int = 0
    private: bool = True
    refused_bytes: int = 0
    free_bytes: int = 0

    @property
    def ready(self) -> bool:
        """Return whether the tier does all it should."""
        return self.readable and self.writable


def state_after_fault(
    state: TierState, fault: TierFault, now: float, refused: tuple[int, int] = (0, 0)
) -> TierState:
    """Return the state after the disk refused something: off, and tried again ever more rarely.

    `refused` are the bytes that were to be written, and those the volume said were free.
    """
    if fault.reason is TierReason.BUSY:
        return state
    refused_bytes, free_bytes = refused if fault.reason is TierReason.FULL else (0, 0)
    if state.reason is TierReason.FULL and state.refused_bytes > refused_bytes > 0:
        refused_bytes = state.refused_bytes
    delay = min(LONGEST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2.0 ** min(state.failures, 10))
    return TierState(
        fault.reason,
        fault.message,
        readable=state.readable and fault.reason is TierReason.FULL,
        writable=False,
        retry_at_seconds=now + delay,
        failures=state.failures + 1,
        private=state.private,
        refused_bytes=refused_bytes,
        free_bytes=free_bytes,
    )


def state_ready(private: bool) -> TierState:
    """Return the state of a disk that has just been found usable."""
    message = "" if private else "the volume keeps no file modes: others here can read the blocks"
    return TierState(TierReason.READY, message, readable=True, writable=True, private=private)


def has_room_again(state: TierState, free_bytes: int, floor_bytes: int) -> bool:
    """Return whether a full disk may count as well by what its volume says is free.

    `floor_bytes` is what must be free anyway. What was refused must fit now; and where the volume
    said so already when it refused (a quota, no inodes), its word is worth nothing.
    """
    enough_bytes = floor_bytes + state.refused_bytes
    return free_bytes >= enough_bytes > state.free_bytes


def state_hanging(state: TierState) -> TierState:
    """Return the state to tell of a disk that does not answer; what has failed stays that."""
    open_or_opening = state.readable or state.reason is TierReason.STARTING
    if not open_or_opening:
        return state
    return replace(
        state,
        reason=TierReason.HANGING,
        message="the disk does not answer; nothing is read from it until it does",
        readable=False,
        writable=False,
    )


def state_proven(state: TierState, written_bytes: int) -> TierState:
    """Return the state after a block was written: only that proves a disk well again.

    A disk that is full stays so until as much as it refused has found room: short blocks may still
    fit where long ones do not, and the state would change with each.
    """
    if state.reason is TierReason.FULL and written_bytes < state.refused_bytes:
        return state
    return state_ready(state.private) if state.failures or not state.ready else state


def fault_from_os(error: OSError, what: str) -> TierFault:
    """Return what an operating system's error means for the tier."""
    reasons = {
        errno.ENOSPC: TierReason.FULL,
        errno.EDQUOT: TierReason.FULL,
        errno.EROFS: TierReason.READ_ONLY,
        errno.ENOENT: TierReason.ABSENT,
        errno.ENOTDIR: TierReason.UNUSABLE,
        errno.EACCES: TierReason.UNUSABLE,
        errno.EPERM: TierReason.UNUSABLE,
        errno.ELOOP: TierReason.UNUSABLE,
    }
    reason = reasons.get(error.errno or 0, TierReason.IO_ERROR)
    return TierFault(reason, f"{what}: {error.strerror or error}")


def fault_from_sqlite(error: sqlite3.Error) -> TierFault:
    """Return what an error of the index means for the tier."""
    name = getattr(error, "sqlite_errorname", "")
    reasons = {
        "SQLITE_BUSY": TierReason.BUSY,
        "SQLITE_LOCKED": TierReason.BUSY,
        "SQLITE_FULL": TierReason.FULL,
        "SQLITE_READONLY": TierReason.READ_ONLY,
        "SQLITE_IOERR": TierReason.IO_ERROR,
        "SQLITE_CANTOPEN": TierReason.IO_ERROR,
        "SQLITE_PERM": TierReason.UNUSABLE,
    }
    family = "_".join(name.split("_")[:2])
    # What is left (corrupt, not a database, no such table) means the file is not our index.
    return TierFault(reasons.get(family, TierReason.INDEX), f"the index: {error}")
