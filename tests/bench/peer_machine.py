"""How busy the machine was with work that is not the bench's, so that a run can be judged.

Called by peers.py.
"""

import os
import time
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class Work:
    """Processor seconds up to now: the machine's, and those of this process and its children."""

    at: float
    machine: float
    own: float


def observe_work() -> Work:
    """Read the machine's and our processor seconds."""
    all_times = psutil.cpu_times()._asdict()
    idle = all_times["idle"] + all_times.get("iowait", 0.0)
    guests = all_times.get("guest", 0.0) + all_times.get("guest_nice", 0.0)  # in user and nice too
    busy = sum(all_times.values()) - idle - guests
    me = psutil.Process()
    own = sum(_spent(process) for process in [me, *me.children(recursive=True)])
    return Work(time.monotonic(), busy, own)


def busy_elsewhere_ratio(before: Work, after: Work) -> float:
    """Return which part of the machine's processors others had between two readings."""
    wall = max(1e-9, after.at - before.at) * (os.cpu_count() or 1)
    others = (after.machine - before.machine) - (after.own - before.own)
    return min(1.0, max(0.0, others / wall))


def _spent(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    # What ended children spent is in their parent's figures once it has waited for them.
    waited: float = times.children_user + times.children_system
    spent: float = times.user + times.system + waited
    return spent
