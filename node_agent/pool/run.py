"""One engine process from spawn to exit, with the rows it was given.

Owns the process, its gauges and its streams, which all die together. It reports what happens
as lifecycle events and decides nothing; `slot.py` does.
"""

from collections.abc import Callable
from dataclasses import dataclass

from manifests.errors import Code
from node_agent.engine.framing import FrameError
from node_agent.engine.messages import (
    Ask,
    CacheReport,
    Cancel,
    ChunkMeasured,
    Command,
    Event,
    Failed,
    Finished,
    Generate,
    Heartbeat,
    Hello,
    Loaded,
    LoadFailed,
    Loading,
    PrefillProgress,
    PrefixesHeld,
    Restored,
    Shutdown,
    Tokens,
)
from node_agent.pool import lifecycle
from node_agent.pool.cache_side import CacheNotes, CacheSide
from node_agent.pool.engine_log import log_file
from node_agent.pool.lifecycle import Effect
from node_agent.pool.memory_side import MemorySide
from node_agent.pool.process import EngineProcess, spawn
from node_agent.pool.rates import RateMeter
from node_agent.pool.settings import PoolSettings
from node_agent.pool.streams import RowEvent, RowStream, StreamTable, failed
from node_agent.sources.base import SourceResolver


@dataclass(frozen=True, slots=True)
class SlotTools:
    """What every engine of the pool is given; the clocks return seconds.

    `changed` is told that a view changed, `measured` what an engine measured or asks for.
    """

    settings: PoolSettings
    resolver: SourceResolver
    clock: Callable[[], float]
    wall_clock: Callable[[], float]
    changed: Callable[[], None]
    measured: Callable[[str, ChunkMeasured | Ask], None]
    memory: MemorySide
    cache: CacheSide


class EngineRun:
    """One process; `live` runs until it is gone."""

    def __init__(
        self, name: str, tools: SlotTools, report: Callable[[lifecycle.Event], None]
    ) -> None:
        self.streams = StreamTable()
        self.rates = RateMeter(tools.clock)
        self.cache = CacheNotes()
        self.loaded: Loaded | None = None
        self.heartbeat: Heartbeat | None = None
        self.heartbeat_at = tools.clock()
        self.started_epoch_seconds: float | None = None
        self.done_bytes = 0
        self.total_bytes = 0
        self._name, self._tools, self._report = name, tools, report
        self._process: EngineProcess | None = None

    @property
    def pid(self) -> int | None:
        """The process id while the process exists."""
        return None if self._process is None else self._process.pid

    async def live(self) -> None:
        """Start the process and stay with it to its end."""
        settings = self._tools.settings
        try:
            process = await spawn(
                settings.launcher,
                log_file(settings.log_directory, self._name),
                self._on_event,
                lambda message: self._report(lifecycle.LinkLost(message)),
            )
        except Exception as fault:  # noqa: BLE001 - root of the task; the engine must not hang
            self._report(lifecycle.SpawnFailed(f"the engine process did not start: {fault}"))
            return
        self._process = process
        self.started_epoch_seconds = self._tools.wall_clock()
        process.listen()
        self._report(lifecycle.Spawned())
        words = await process.wait()
        self._process, self.heartbeat, self.loaded = None, None, None
        self.cache.end()
        self._report(lifecycle.Exited(words))

    def push(self, effect: Effect) -> None:
        """Ask, terminate or kill the process, if there is one."""
        if self._process is None:
            return
        if effect is Effect.SHUTDOWN:
            self._process.send(Shutdown())
        elif effect is Effect.TERMINATE:
            self._process.terminate()
        elif effect is Effect.KILL:
            self._process.kill()

    def send(self, command: Command) -> bool:
        """Pass a command on; False without a process."""
        if self._process is None:
            return False
        self._process.send(command)
        return True

    def generate(self, command: Generate) -> RowStream:
        """Send a row; the stream has already failed when the process cannot take it."""
        stream = RowStream(
            command.request_id, self._cancel, self._tools.clock(), len(command.prompt)
        )
        if command.request_id in self.streams:
            stream.put(failed(command.request_id, Code.INTERNAL, "the request id is in use"))
            return stream
        if self._process is None:
            stream.put(failed(command.request_id, Code.ENGINE_DIED, "the engine is gone"))
            return stream
        try:
            self._process.send(command)
        except FrameError as fault:
            stream.put(failed(command.request_id, Code.REQUEST_TOO_LARGE, str(fault)))
            return stream
        self.streams.add(stream)
        self._tools.changed()
        return stream

    def excuse_silence(self) -> None:
        """Start the heartbeat's age anew."""
        self.heartbeat_at = self._tools.clock()

    def note_progress(self, done_bytes: int, total_bytes: int) -> None:
        """Remember how far a download or a load is."""
        self.done_bytes, self.total_bytes = done_bytes, total_bytes
        self._tools.changed()

    def _cancel(self, request_id: str) -> None:
        if self._process is not None:
            self._process.send(Cancel(request_id=request_id))

    def _on_event(self, event: Event) -> None:
        match event:
            case Hello():
                self._report(lifecycle.HelloSeen())
            case Loading():
                self.note_progress(event.done_bytes, event.total_bytes)
            case Loaded():
                self.loaded = event
                self._report(lifecycle.LoadedSeen())
            case LoadFailed():
                self._report(lifecycle.LoadFailedSeen(event.message))
            case ChunkMeasured() | Ask():
                self._tools.measured(self._name, event)
            case Heartbeat():
                self.heartbeat, self.heartbeat_at = event, self._tools.clock()
                self._tools.changed()
            case CacheReport() | PrefixesHeld() | Restored():
                self.cache.note(event)
                self._tools.changed()
            case _:
                self._on_row_event(event)

    def _on_row_event(self, event: RowEvent) -> None:
        match event:
            case Finished():
                self.rates.note_end(event.request_id)
                self.cache.note(event)
            case Failed():
                self.rates.note_end(event.request_id)
            case PrefillProgress():
                self.rates.note_prefill(event.chunk_tokens, event.seconds, event.done_tokens)
            case Tokens():
                self.rates.note_tokens(event.request_id, len(event.ids))
        if self.streams.deliver(event):
            self._report(lifecycle.RowsChanged())
