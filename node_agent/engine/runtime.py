"""The one MLX thread: loads the model, turns the step loop, frees the arrays.

Owns every array of the process, from load to free. Talks to the socket's thread only through
the mailbox, the board and `emit`. Imported after Hello, on this thread.
"""

import gc
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import partial
from itertools import islice

import mlx.core as mx

from manifests.errors import Code, Retryable
from node_agent.engine.faults import classify_fault, explain_fault
from node_agent.engine.heap import Heap, find_trim
from node_agent.engine.loading import LoadedModel, load, set_wired_limit
from node_agent.engine.mailbox import Board, Mailbox, RowCounts, StepGauges
from node_agent.engine.messages import (
    Abort,
    Answer,
    CacheLimits,
    Cancel,
    Command,
    Event,
    Failed,
    Generate,
    Limits,
    Load,
    LoadFailed,
    Loading,
    Reclaim,
    Shutdown,
)
from node_agent.engine.meter import MemoryMeter
from node_agent.engine.prefix.prefix_report import PrefixReporter, not_cacheable
from node_agent.engine.prefix.prefix_store import PrefixStore
from node_agent.engine.scheduling.scheduler import Scheduler

IDLE_TURN_SECONDS = 0.5

Emit = Callable[[Sequence[Event]], None]


class ExitCode(IntEnum):
    """How the process ends."""

    CLEAN = 0
    STEP_FAILED = 1
    LOAD_FAILED = 3


class _Stopped(Exception):  # noqa: N818 - a way out of the load, not an error
    """Shutdown arrived while loading."""


class Runtime:
    """One engine's life on the MLX thread."""

    def __init__(self, mailbox: Mailbox, board: Board, emit: Emit) -> None:
        self._mailbox, self._board, self._emit = mailbox, board, emit
        self._inbox: deque[Command] = deque()
        self._memory = MemoryMeter()
        self._limits = Limits()
        self._scheduler: Scheduler | None = None
        self._store: PrefixStore | None = None
        self._reporter: PrefixReporter | None = None
        self._heap = Heap(find_trim())
        self._steps = 0
        self._wired_bytes = 0

    def run(self) -> ExitCode:
        """Live until Shutdown or a fault; every request is answered either way."""
        self._board.read_memory = self._memory.read
        try:
            code = self._live()
        except Exception as fault:  # noqa: BLE001 - root of the MLX thread
            traceback.print_exc()
            sys.stderr.write(f"the engine ends: {classify_fault(fault)} fault\n")
            self._fail_all(Code.ENGINE_DIED, f"the engine failed: {explain_fault(fault)}")
            code = ExitCode.STEP_FAILED
        self._scheduler = None
        gc.collect()
        mx.clear_cache()
        if self._store is not None:
            self._store.close()
        # A thread that ran a model must end with this, or the process aborts at exit.
        mx.clear_streams()
        return code

    def _live(self) -> ExitCode:
        try:
            loaded = self._load()
        except _Stopped:
            return ExitCode.CLEAN
        if loaded is None:
            return ExitCode.LOAD_FAILED
        prefixes = loaded.prefixes
        self._scheduler = Scheduler(
            loaded.runner, loaded.vocab_size, self._memory, loaded.forecast, prefixes=prefixes
        )
        if self._store is not None and prefixes is not None:
            identity = (prefixes.fingerprint, prefixes.layout)
            self._reporter = PrefixReporter(self._store, identity)
        self._scheduler.steer(self._limits)
        self._show(None)
        self._emit([loaded.announcement])
        if loaded.prefixes_fault:
            self._emit([not_cacheable(loaded.prefixes_fault)])
        while self._turn(self._scheduler):
            pass
        self._fail_all(Code.SHUTTING_DOWN, "the engine is shutting down")
        return ExitCode.CLEAN

    def _load(self) -> LoadedModel | None:
        command = self._await_load()
        self._wired_bytes = command.wired_limit_bytes
        if command.model_fingerprint:
            self._store = PrefixStore(command.cache)
        self._show(time.monotonic())
        try:
            return load(command, self._report_progress, self._memory, self._store)
        except _Stopped:
            raise
        except Exception as fault:  # noqa: BLE001 - a model's files can make mlx-lm raise anything
            traceback.print_exc()
            self._emit([LoadFailed(message=explain_fault(fault))])
            return None

    def _await_load(self) -> Load:
        while True:
            self._inbox.extend(self._mailbox.take(IDLE_TURN_SECONDS))
            if any(isinstance(command, Shutdown) for command in self._inbox):
                raise _Stopped
            for at, command in enumerate(self._inbox):
                if isinstance(command, Limits):
                    self._limits = command
                if isinstance(command, Load):
                    if command.limits != Limits():
                        self._limits = command.limits
                    # What came along with it stays for the first turn, but older limits must
                    # not undo newer ones then.
                    earlier = islice(self._inbox, at)
                    before = [one for one in earlier if not isinstance(one, Limits | CacheLimits)]
                    self._inbox = deque([*before, *islice(self._inbox, at + 1, None)])
                    return command

    def _report_progress(self, done_bytes: int, total_bytes: int) -> None:
        self._show(time.monotonic())
        self._emit([Loading(done_bytes=done_bytes, total_bytes=total_bytes)])
        self._inbox.extend(self._mailbox.take(0))
        if any(isinstance(command, Shutdown) for command in self._inbox):
            raise _Stopped

    def _turn(self, scheduler: Scheduler) -> bool:
        """Take commands and run one step; return False on Shutdown."""
        if not self._inbox:
            self._inbox.extend(self._mailbox.take(0 if scheduler.runnable else IDLE_TURN_SECONDS))
        events = self._obey_inbox(scheduler)
        if self._inbox:
            self._emit(events)
            return False
        worked = scheduler.busy
        if worked:
            self._show(time.monotonic())
            if events:
                self._emit(events)
            events = scheduler.step(partial(self._hear, scheduler))
        self._steps += 1
        self._show(None)
        if self._reporter is not None:
            events += self._reporter.events()
        if events:
            self._emit(events)
        if worked:
            self._heap.note_use()
        else:
            self._heap.rest()
        return True

    def _hear(self, scheduler: Scheduler, decoded: list[Event]) -> None:
        """Send what was decoded, and take in what came meanwhile, before a chunk is fed."""
        self._inbox.extend(self._mailbox.take(0))
        if events := [*decoded, *self._obey_inbox(scheduler)]:
            self._emit(events)

    def _obey_inbox(self, scheduler: Scheduler) -> list[Event]:
        """Carry out the commands up to a Shutdown, which stays; return what they ended."""
        events: list[Event] = []
        while self._inbox and not isinstance(self._inbox[0], Shutdown):
            command = self._inbox.popleft()
            if isinstance(command, CacheLimits) and self._store is not None:
                self._store.resize(command)
            if isinstance(command, Limits):
                self._wire(command.wired_limit_bytes)
            events += _obey(scheduler, command)
            if isinstance(command, CacheLimits | Reclaim):
                self._heap.give_back()
        return events

    def _wire(self, wired_bytes: int | None) -> None:
        """Follow a changed guard; between steps, when no row's work is under way."""
        if wired_bytes is not None and wired_bytes != self._wired_bytes:
            self._wired_bytes = wired_bytes
            set_wired_limit(wired_bytes)

    def _show(self, started_seconds: float | None) -> None:
        self._board.step = StepGauges(
            steps=self._steps,
            started_seconds=started_seconds,
            rows=RowCounts() if self._scheduler is None else self._scheduler.counts,
        )

    def _fail_all(self, code: Code, message: str) -> None:
        events: list[Event] = []
        if self._scheduler is not None:
            events += self._scheduler.fail_all(code, message, Retryable.ELSEWHERE)
        self._inbox.extend(self._mailbox.take(0))
        events += [
            Failed(request_id=command.request_id, code=code.value, message=message)
            for command in self._inbox
            if isinstance(command, Generate)
        ]
        self._inbox.clear()
        if events:
            self._emit(events)


def _obey(scheduler: Scheduler, command: Command) -> list[Event]:
    """Carry out one command between steps and return what it ended."""
    match command:
        case Generate():
            return scheduler.submit(command)
        case Cancel():
            return scheduler.cancel(command.request_id)
        case Abort():
            return scheduler.abort(command)
        case Limits() | Answer() | Reclaim():
            scheduler.steer(command)
    return []


def run(mailbox: Mailbox, board: Board, emit: Emit) -> int:
    """Run the MLX thread to its end and return the exit code."""
    return int(Runtime(mailbox, board, emit).run())
