"""The values of an engine's life: phases, events, effects, delays.

Frozen and without behaviour; `states.py` says which event leads where.
"""

from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """Where an engine is."""

    RESOLVING = "Resolving"
    ADMITTING = "Admitting"
    SPAWNING = "Spawning"
    LOADING = "Loading"
    READY = "Ready"
    DRAINING = "Draining"
    STOPPING = "Stopping"
    BACKOFF = "Backoff"
    FAILED = "Failed"
    STOPPED = "Stopped"
    GONE = "Gone"


class Effect(StrEnum):
    """What the owner has to do after a transition, in order."""

    RESOLVE = "resolve"
    CANCEL_RESOLVE = "cancel resolve"
    ADMIT = "admit"
    CANCEL_ADMIT = "cancel admit"
    SPAWN = "spawn"
    LOAD = "load"
    SHUTDOWN = "shutdown"
    TERMINATE = "terminate"
    KILL = "kill"
    FAIL_STREAMS = "fail streams"
    FORGET = "forget"


class StopStep(StrEnum):
    """How hard a stopping engine has been pushed."""

    ASKED = "asked"
    TERMINATED = "terminated"
    KILLED = "killed"


class Reason(StrEnum):
    """Machine-readable reasons of an engine that does not serve; source errors bring their own."""

    ENGINE_DIED = "EngineDied"
    ENGINE_STUCK = "EngineStuck"
    LOAD_FAILED = "LoadFailed"
    SPAWN_FAILED = "SpawnFailed"
    WAITING_FOR_MEMORY = "WaitingForMemory"
    INSUFFICIENT_MEMORY = "InsufficientMemory"
    EVICTED = "Evicted"
    IDLE_TTL = "IdleTTL"


@dataclass(frozen=True, slots=True)
class Timings:
    """Delays of the machine. Units: seconds."""

    backoff_min_seconds: float = 1.0
    backoff_max_seconds: float = 60.0
    load_backoff_min_seconds: float = 10.0
    load_backoff_max_seconds: float = 300.0
    permanent_retry_seconds: float = 60.0
    stable_seconds: float = 60.0
    shutdown_wait_seconds: float = 10.0
    terminate_wait_seconds: float = 20.0
    lost_link_wait_seconds: float = 2.0


@dataclass(frozen=True, slots=True)
class State:
    """One engine at one moment. `since` and `deadline` are of the pool's clock.

    `failures` counts failures in a row and sets the backoff; `starts` counts processes, less
    those that a request brought back. `then` is where STOPPING leads once the process is gone.
    `reason` and `message` tell of the last failure and stay until the engine is ready again, or
    why it was unloaded. `waits_for` says in words what ADMITTING waits for. `woken` holds from
    the request that brings an unloaded engine back until its next failure or unload.
    """

    phase: Phase = Phase.RESOLVING
    since: float = 0.0
    deadline: float | None = None
    reason: str = ""
    message: str = ""
    starts: int = 0
    failures: int = 0
    then: Phase = Phase.GONE
    stop_step: StopStep = StopStep.ASKED
    waits_for: str = ""
    woken: bool = False
    spawned_at: float = 0.0
    load_seconds: float = 0.0

    @property
    def restarts(self) -> int:
        """How often a process was started after the first."""
        return max(0, self.starts - 1)

    @property
    def unloading(self) -> bool:
        """Whether it is on its way out to make room, and not asked back yet."""
        return self.phase is Phase.STOPPING and self.then is Phase.STOPPED

    @property
    def evicted(self) -> bool:
        """Whether it was unloaded and nobody has asked for it since."""
        return self.phase is Phase.STOPPED or self.unloading

    @property
    def returning(self) -> bool:
        """Whether a request has asked an unloaded engine back and its load goes on."""
        reloads = self.phase is Phase.STOPPING and self.then is Phase.RESOLVING
        return self.woken and (reloads or self.phase in _ON_THE_WAY)

    @property
    def holds_memory(self) -> bool:
        """Whether bytes granted to its load may still be in its process."""
        return self.phase in _WITH_PROCESS


_ON_THE_WAY = frozenset({Phase.RESOLVING, Phase.ADMITTING, Phase.SPAWNING, Phase.LOADING})
_WITH_PROCESS = frozenset(
    {Phase.SPAWNING, Phase.LOADING, Phase.READY, Phase.DRAINING, Phase.STOPPING}
)


@dataclass(frozen=True, slots=True)
class Started:
    """The engine was just wanted."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """The model's files are on this machine; `needs` says in words what its load will take."""

    needs: str = ""


@dataclass(frozen=True, slots=True)
class ResolveFailed:
    """They cannot be had; `permanent` means only a change of the world helps."""

    message: str
    code: str
    permanent: bool


@dataclass(frozen=True, slots=True)
class Admitted:
    """The memory side has set the bytes of the load aside."""


@dataclass(frozen=True, slots=True)
class AdmissionDelayed:
    """It has not yet; ask again in a while."""

    message: str
    again_seconds: float


@dataclass(frozen=True, slots=True)
class AdmissionRefused:
    """It never will as things stand."""

    message: str


@dataclass(frozen=True, slots=True)
class GuardChanged:
    """Another memory guard is in force; what was refused for memory may fit now."""


@dataclass(frozen=True, slots=True)
class Spawned:
    """The process exists and its socket is open."""


@dataclass(frozen=True, slots=True)
class SpawnFailed:
    """The process could not be started."""

    message: str


@dataclass(frozen=True, slots=True)
class HelloSeen:
    """The process runs our code."""


@dataclass(frozen=True, slots=True)
class LoadedSeen:
    """The engine takes requests."""


@dataclass(frozen=True, slots=True)
class LoadFailedSeen:
    """The engine cannot serve this model and is on its way out."""

    message: str


@dataclass(frozen=True, slots=True)
class LinkLost:
    """The socket closed; the process may still be there."""

    message: str


@dataclass(frozen=True, slots=True)
class Exited:
    """The process is gone; `words` say how."""

    words: str


@dataclass(frozen=True, slots=True)
class Stuck:
    """The heartbeat says that the engine does not move."""

    message: str


@dataclass(frozen=True, slots=True)
class Unwanted:
    """The engine should go; running rows may finish within the grace."""

    grace_seconds: float


@dataclass(frozen=True, slots=True)
class Evicted:
    """The engine should give its memory back; its owner has seen that nobody uses it."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Woken:
    """A request asks for an unloaded engine."""


@dataclass(frozen=True, slots=True)
class Drained:
    """No row and no lease is left."""


@dataclass(frozen=True, slots=True)
class RowsChanged:
    """A row began or ended; no phase depends on it by itself."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event = (
    Started
    | Resolved
    | ResolveFailed
    | Admitted
    | AdmissionDelayed
    | AdmissionRefused
    | GuardChanged
    | Spawned
    | SpawnFailed
    | HelloSeen
    | LoadedSeen
    | LoadFailedSeen
    | LinkLost
    | Exited
    | Stuck
    | Unwanted
    | Evicted
    | Woken
    | Drained
    | RowsChanged
    | Tick
)
