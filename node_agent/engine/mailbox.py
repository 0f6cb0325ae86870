"""What crosses between the socket's thread and the MLX thread.

Commands go in through a bounded mailbox; plain gauges come back as one frozen value that is
replaced, never changed. No array and no lock crosses this border.
"""

import queue
from collections.abc import Callable
from dataclasses import dataclass

from node_agent.engine.messages import Command, Generate

MAX_QUEUED_REQUESTS = 4096


@dataclass(frozen=True, slots=True)
class MemoryGauges:
    """What MLX holds. Units: bytes."""

    active_bytes: int = 0
    cache_bytes: int = 0
    peak_bytes: int = 0


@dataclass(frozen=True, slots=True)
class RowCounts:
    """How many requests are where; see Heartbeat."""

    running: int = 0
    waiting: int = 0
    prefilling: int = 0
    held: int = 0
    prefill_turn: bool = True
    over_budget_bytes: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0


@dataclass(frozen=True, slots=True)
class StepGauges:
    """Where the step loop is; `started_seconds` is of the monotonic clock, None when idle."""

    steps: int = 0
    started_seconds: float | None = None
    rows: RowCounts = RowCounts()


def no_memory() -> MemoryGauges:
    """Return empty gauges, for the time before MLX is imported."""
    return MemoryGauges()


@dataclass(slots=True)
class Board:
    """The gauges on show: the MLX thread replaces them, the socket's thread reads them."""

    step: StepGauges = StepGauges()
    read_memory: Callable[[], MemoryGauges] = no_memory


class Mailbox:
    """Commands on their way to the MLX thread, in order."""

    def __init__(self, max_queued_requests: int = MAX_QUEUED_REQUESTS) -> None:
        self._queue: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._max_queued_requests = max_queued_requests

    def put(self, command: Command) -> bool:
        """Add a command; return False when a new request finds the mailbox full.

        Every other command gets in: there are a few for each request here, and one or two a second
        about memory.
        """
        if isinstance(command, Generate) and self._queue.qsize() >= self._max_queued_requests:
            return False
        self._queue.put(command)
        return True

    def take(self, wait_seconds: float) -> list[Command]:
        """Return what is there, waiting up to `wait_seconds` for the first command."""
        commands: list[Command] = []
        try:
            commands.append(self._queue.get(timeout=wait_seconds or None, block=wait_seconds > 0))
            while True:
                commands.append(self._queue.get_nowait())
        except queue.Empty:
            return commands
