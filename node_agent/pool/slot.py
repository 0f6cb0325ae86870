"""One engine of the pool: its state, and the run that is under way.

Owns carrying out the effects that `states.py` decides. Everything here runs on the event loop;
the pool makes slots, ticks them and drops them when they are gone.
"""

import asyncio

from manifests.engine import EnginePhase
from manifests.errors import Code
from manifests.model import EngineType
from node_agent.engine.messages import Generate, Load
from node_agent.pool import lifecycle
from node_agent.pool.base import EngineView, EngineWant
from node_agent.pool.engine_log import log_file, rotate_log
from node_agent.pool.lifecycle import Effect, Phase, Reason, State
from node_agent.pool.run import EngineRun, SlotTools
from node_agent.pool.states import transition
from node_agent.pool.streams import RowStream, failed
from node_agent.pool.watch import Pulse, can_progress, find_stall
from node_agent.sources.base import ModelFiles, SourceError

_SHOWN_PHASE = {
    Phase.RESOLVING: EnginePhase.PENDING,
    Phase.SPAWNING: EnginePhase.LOADING,
    Phase.LOADING: EnginePhase.LOADING,
    Phase.READY: EnginePhase.READY,
    Phase.DRAINING: EnginePhase.DRAINING,
    Phase.STOPPING: EnginePhase.DRAINING,
    Phase.BACKOFF: EnginePhase.FAILED,
    Phase.FAILED: EnginePhase.FAILED,
    Phase.GONE: EnginePhase.STOPPED,
}


class Slot:
    """One wanted or still stopping engine."""

    def __init__(self, want: EngineWant, tools: SlotTools) -> None:
        self.want = want
        self.leases = 0
        self.idle_leases = 0
        self._tools = tools
        self._state = State(since=tools.clock())
        self._files: ModelFiles | None = None
        self._run = EngineRun(want.name, tools, self.handle)
        self._resolving: asyncio.Task[None] | None = None
        self._living: asyncio.Task[None] | None = None
        self._log_checked_at = tools.clock()

    @property
    def phase(self) -> Phase:
        """Where the engine is."""
        return self._state.phase

    @property
    def load(self) -> int:
        """How many requests it holds or has been promised."""
        return len(self._run.streams) + self.idle_leases

    def handle(self, event: lifecycle.Event) -> None:
        """Take a transition and carry out its effects."""
        before, tools = self._state, self._tools
        self._state, effects = transition(before, event, tools.clock(), tools.settings.timings)
        for effect in effects:
            self._carry_out(effect)
        rows_changed = isinstance(event, lifecycle.RowsChanged)
        if rows_changed:
            self.note_idle()
        if rows_changed or self._state != before:
            tools.changed()

    def tick(self) -> None:
        """Look at the clock: stalls, deadlines, a drain that is over, the log's size."""
        stall = find_stall(self._pulse(), self._tools.settings.watch)
        if stall:
            self.handle(lifecycle.Stuck(stall))
        self.handle(lifecycle.Tick())
        self.note_idle()
        now, settings = self._tools.clock(), self._tools.settings
        if now - self._log_checked_at >= settings.log_check_seconds:
            self._log_checked_at = now
            rotate_log(log_file(settings.log_directory, self.want.name), settings.max_log_bytes)

    def note_idle(self) -> None:
        """End a drain once nothing is left to finish."""
        if self.phase is Phase.DRAINING and not self._run.streams and not self.leases:
            self.handle(lifecycle.Drained())

    def excuse_silence(self) -> None:
        """Start the heartbeat's age anew: the agent itself was not looking."""
        self._run.heartbeat_at = self._tools.clock()

    def view(self) -> EngineView:
        """Return the engine as it is now."""
        run, state, pulse = self._run, self._state, self._pulse()
        failing = state.phase is Phase.STOPPING and state.then is not Phase.GONE
        downloading = state.phase is Phase.RESOLVING and run.total_bytes > 0
        phase = EnginePhase.FAILED if failing else _SHOWN_PHASE[state.phase]
        restart_in_seconds = None
        if state.phase in {Phase.BACKOFF, Phase.FAILED} and state.deadline is not None:
            restart_in_seconds = max(0.0, state.deadline - self._tools.clock())
        return EngineView(
            want=self.want,
            phase=EnginePhase.DOWNLOADING if downloading else phase,
            reason=state.reason or ("" if state.phase is Phase.READY else state.phase.value),
            message=state.message,
            files=self._files,
            loaded=run.loaded,
            heartbeat=run.heartbeat,
            heartbeat_age_seconds=None if run.heartbeat is None else pulse.heartbeat_age_seconds,
            pid=run.pid,
            restarts=state.restarts,
            restart_in_seconds=restart_in_seconds,
            started_epoch_seconds=run.started_epoch_seconds,
            progress_done_bytes=run.done_bytes,
            progress_total_bytes=run.total_bytes,
            running=run.streams.running,
            waiting=run.streams.waiting,
            rows=run.streams.rows,
            prefill_tokens_per_second=run.rates.prefill_tokens_per_second,
            decode_tokens_per_second=run.rates.decode_tokens_per_second,
            making_progress=can_progress(pulse, self._tools.settings.watch),
        )

    def generate(self, command: Generate) -> RowStream:
        """Send a row; the stream fails at once when the engine cannot take it."""
        if self.phase in {Phase.READY, Phase.DRAINING}:
            return self._run.generate(command)
        stream = RowStream(command.request_id, lambda _: None)
        stream.put(failed(command.request_id, *self._explain_end()))
        return stream

    def _pulse(self) -> Pulse:
        now = self._tools.clock()
        return Pulse(
            phase=self.phase,
            phase_seconds=now - self._state.since,
            heartbeat=self._run.heartbeat,
            heartbeat_age_seconds=now - self._run.heartbeat_at,
        )

    def _carry_out(self, effect: Effect) -> None:
        loop = asyncio.get_running_loop()
        match effect:
            case Effect.RESOLVE:
                self._run = EngineRun(self.want.name, self._tools, self.handle)
                self._resolving = loop.create_task(self._resolve())
            case Effect.CANCEL_RESOLVE if self._resolving is not None:
                self._resolving.cancel()
            case Effect.SPAWN:
                self.excuse_silence()
                self._run.note_progress(0, 0)
                self._living = loop.create_task(self._run.live())
            case Effect.LOAD:
                self._run.send_load(self._plan_load())
            case Effect.FAIL_STREAMS:
                self._run.streams.fail_all(*self._explain_end())
            case _:
                self._run.push(effect)

    def _explain_end(self) -> tuple[Code, str]:
        state, name = self._state, self.want.name
        if state.reason == Reason.ENGINE_STUCK:
            return Code.ENGINE_STUCK, f"engine {name} was stopped: {state.message}"
        if state.reason == Reason.ENGINE_DIED:
            return Code.ENGINE_DIED, f"engine {name} died: {state.message}"
        return Code.SHUTTING_DOWN, f"engine {name} was stopped"

    def _plan_load(self) -> Load:
        assert self._files is not None  # noqa: S101 - the state machine resolves before it spawns
        spec = self.want.spec
        return Load(
            model_path=str(self._files.directory),
            chunk_tokens=spec.prefill.chunk_tokens or 0,
            max_running=spec.batching.max_running,
            cache_limit_bytes=self._tools.settings.cache_limit_bytes,
        )

    async def _resolve(self) -> None:
        spec = self.want.spec
        if spec.engine_type is not EngineType.BATCHED:
            message = f"engineType {spec.engine_type} is not supported by this agent; use batched"
            self.handle(lifecycle.ResolveFailed(message, "EngineTypeNotSupported", permanent=True))
            return
        try:
            self._files = await self._tools.resolver.resolve(spec.source, self._run.note_progress)
        except SourceError as fault:
            self.handle(lifecycle.ResolveFailed(fault.message, fault.code, fault.permanent))
        except Exception as fault:  # noqa: BLE001 - root of the task; the engine must not hang
            message = f"resolving the source failed: {type(fault).__name__}: {fault}"
            self.handle(lifecycle.ResolveFailed(message, "ResolveFailed", permanent=False))
        else:
            self.handle(lifecycle.Resolved())
