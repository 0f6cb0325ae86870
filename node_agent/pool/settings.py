"""What the pool is configured with; parsed once by the agent's app."""

from dataclasses import dataclass, field
from pathlib import Path

from node_agent.pool.engine_log import MAX_LOG_BYTES
from node_agent.pool.lifecycle import Timings
from node_agent.pool.process import Launcher
from node_agent.pool.watch import WatchLimits


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """The pool's own slice of the configuration.

    Units: seconds and bytes. `cache_limit_bytes` 0 lets each engine choose how much freed
    memory MLX keeps. `drain_seconds` is how long rows of an engine that should go may run on.
    `fused` says that engines have Metal's fused attention. `load_wait_seconds` is how long a load
    stands in line for memory before it says anew what it waits for. An engine that a request
    brought back is not unloaded for `minimum_stay_seconds`.
    """

    log_directory: Path
    launcher: Launcher = field(default_factory=Launcher)
    timings: Timings = field(default_factory=Timings)
    watch: WatchLimits = field(default_factory=WatchLimits)
    drain_seconds: float = 30.0
    tick_seconds: float = 0.25
    log_check_seconds: float = 5.0
    max_log_bytes: int = MAX_LOG_BYTES
    cache_limit_bytes: int = 0
    fused: bool = False
    load_wait_seconds: float = 120.0
    minimum_stay_seconds: float = 10.0
