"""Judging an engine by its heartbeat: is it moving, is it stuck. Pure."""

from dataclasses import dataclass

from node_agent.engine.messages import Heartbeat
from node_agent.pool.lifecycle import Phase


@dataclass(frozen=True, slots=True)
class WatchLimits:
    """When to doubt and when to kill. Units: seconds.

    `suspect_*` only stop new requests; the others end the process. `load_seconds` bounds the
    time without any progress of a load, not the load itself.
    """

    hello_seconds: float = 60.0
    heartbeat_seconds: float = 10.0
    step_seconds: float = 120.0
    load_seconds: float = 600.0
    suspect_heartbeat_seconds: float = 5.0
    suspect_step_seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class Pulse:
    """What is known of an engine's movement. Units: seconds."""

    phase: Phase
    phase_seconds: float
    heartbeat: Heartbeat | None
    heartbeat_age_seconds: float


def find_stall(pulse: Pulse, limits: WatchLimits) -> str:
    """Return why an engine must be killed, or an empty text."""
    if pulse.phase is Phase.SPAWNING:
        late = pulse.phase_seconds > limits.hello_seconds
        return f"no hello for {limits.hello_seconds:.0f} s after the start" if late else ""
    if pulse.phase not in {Phase.LOADING, Phase.READY, Phase.DRAINING}:
        return ""
    if pulse.heartbeat_age_seconds > limits.heartbeat_seconds:
        return f"no heartbeat for {pulse.heartbeat_age_seconds:.0f} s"
    step_seconds = 0.0 if pulse.heartbeat is None else pulse.heartbeat.step_seconds
    if pulse.phase is Phase.LOADING:
        slow = step_seconds > limits.load_seconds
        return f"the load has not moved for {step_seconds:.0f} s" if slow else ""
    if step_seconds > limits.step_seconds:
        return f"one step has been running for {step_seconds:.0f} s"
    return ""


def can_progress(pulse: Pulse, limits: WatchLimits) -> bool:
    """Return whether new requests may be given to a ready engine."""
    return (
        pulse.phase is Phase.READY
        and pulse.heartbeat is not None
        and pulse.heartbeat_age_seconds <= limits.suspect_heartbeat_seconds
        and pulse.heartbeat.step_seconds <= limits.suspect_step_seconds
    )
