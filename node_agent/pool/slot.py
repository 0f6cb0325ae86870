"""One engine of the pool: its state, and the run that is under way.

Owns carrying out the effects that `states.py` decides. Everything here runs on the event loop;
the pool makes slots, ticks them and drops them when they are gone.
"""

import asyncio

from manifests.units import format_bytes
from node_agent.engine.messages import Command, Generate, Limits
from node_agent.pool import lifecycle
from node_agent.pool.base import EngineView, EngineWant
from node_agent.pool.claim import LoadClaim
from node_agent.pool.engine_log import log_file, rotate_log
from node_agent.pool.finding import Found, find_files
from node_agent.pool.lifecycle import Effect, Phase, Reason, State
from node_agent.pool.load_plan import are_weights_counted, plan_load
from node_agent.pool.returned import ReturnedMemory
from node_agent.pool.run import EngineRun, SlotTools
from node_agent.pool.slot_view import SlotParts, describe_slot, explain_end, take_pulse
from node_agent.pool.states import transition
from node_agent.pool.streams import RowStream, failed
from node_agent.pool.use import Occupancy, Use, can_unload
from node_agent.pool.watch import find_stall


class Slot:
    """One wanted or still stopping engine."""

    def __init__(self, want: EngineWant, tools: SlotTools) -> None:
        self.want = want
        self.use = Use(tools.clock)
        self._tools = tools
        self._state = State(since=tools.clock())
        self._found: Found | None = None
        self._limits = Limits()
        self._run = EngineRun(want.name, tools, self.handle)
        self._claim = LoadClaim(want.name, tools.memory.admission, self.handle)
        self._returned = ReturnedMemory(want.name, tools.memory)
        self._resolving: asyncio.Task[None] | None = None
        self._living: asyncio.Task[None] | None = None
        self._log_checked_at = tools.clock()

    @property
    def state(self) -> State:
        """Where the engine is; a frozen value."""
        return self._state

    @property
    def load(self) -> int:
        """How many requests it holds or has been promised."""
        return len(self._run.streams) + self.use.idle_leases

    def handle(self, event: lifecycle.Event) -> None:
        """Take a transition and carry out its effects."""
        before, tools = self._state, self._tools
        self._state, effects = transition(before, event, tools.clock(), tools.settings.timings)
        for effect in effects:
            self._carry_out(effect)
        if not self._state.holds_memory:
            self._claim.release()
        rows_changed = isinstance(event, lifecycle.RowsChanged)
        if rows_changed:
            self.note_use()
        if rows_changed or self._state != before:
            tools.changed()

    def tick(self, *, was_blind: bool = False) -> None:
        """Look at the clock: stalls, deadlines, a drain or an idle time that is over, the log.

        `was_blind` excuses silence so far: the agent itself was not looking.
        """
        now, settings = self._tools.clock(), self._tools.settings
        if was_blind:
            self._run.excuse_silence()
        stall = find_stall(take_pulse(self._state, self._run, now), settings.watch)
        if stall:
            self.handle(lifecycle.Stuck(stall))
        self.handle(lifecycle.Tick())
        self.note_use()
        ttl, idle_seconds = self.want.spec.keep.idle_ttl, self._idle_seconds()
        if ttl is not None and idle_seconds is not None and idle_seconds >= ttl.seconds:
            self.unload(Reason.IDLE_TTL, f"no request for {ttl}")
        self._settle_memory(now)
        if now - self._log_checked_at >= settings.log_check_seconds:
            self._log_checked_at = now
            rotate_log(log_file(settings.log_directory, self.want.name), settings.max_log_bytes)

    def note_use(self) -> None:
        """Take in that rows or leases changed; ends a drain once nothing is left to finish."""
        rows = len(self._run.streams)
        self.use.note(rows)
        if self._state.phase is Phase.DRAINING and not rows and not self.use.leases:
            self.handle(lifecycle.Drained())

    def unload(self, reason: str, message: str, *, urgent: bool = False) -> bool:
        """Begin to unload it if nobody uses it, in one step with looking; False when it stays."""
        stay_seconds = 0.0 if urgent else self._tools.settings.minimum_stay_seconds
        occupancy = Occupancy(
            ready=self._state.phase is Phase.READY,
            pinned=self.want.spec.keep.pinned,
            leases=self.use.leases,
            rows=len(self._run.streams),
            woken=self._state.woken,
            ready_seconds=self._tools.clock() - self._state.since,
        )
        if not can_unload(occupancy, stay_seconds):
            return False
        beat = self._run.heartbeat
        self._returned.begin(0 if beat is None else beat.active_bytes + beat.cache_bytes)
        self.handle(lifecycle.Evicted(reason, message))
        return True

    def send(self, command: Command) -> bool:
        """Pass a command of the memory side on; limits are kept for the next start as well."""
        if isinstance(command, Limits):
            self._limits = command
        takes = {Phase.LOADING, Phase.READY, Phase.DRAINING}
        return self._state.phase in takes and self._run.send(command)

    def view(self) -> EngineView:
        """Return the engine as it is now."""
        parts = SlotParts(
            want=self.want,
            state=self._state,
            files=None if self._found is None else self._found.files,
            run=self._run,
            now=self._tools.clock(),
            leases=self.use.leases,
            idle_seconds=self._idle_seconds(),
            returned=self._returned,
            cache_terms=self._tools.cache.standing(self.want.name),
        )
        return describe_slot(parts, self._tools.settings.watch)

    def generate(self, command: Generate) -> RowStream:
        """Send a row; the stream fails at once when the engine cannot take it."""
        if self._state.phase in {Phase.READY, Phase.DRAINING}:
            return self._run.generate(command)
        stream = RowStream(command.request_id, lambda _: None)
        stream.put(failed(command.request_id, *explain_end(self.want.name, self._state)))
        return stream

    def _idle_seconds(self) -> float | None:
        """Return the time since the end of the last request, or since it was ready."""
        idle_seconds = self.use.idle_seconds
        if idle_seconds is None or self._state.phase is not Phase.READY:
            return None
        return min(idle_seconds, self._tools.clock() - self._state.since)

    def _settle_memory(self, now: float) -> None:
        """End the promise of a load that is over; take stock after an unload."""
        if self._claim.held and self._state.phase is Phase.READY:
            counted = self._tools.memory.footprint_bytes(self.want.name)
            if are_weights_counted(self._run.loaded, self._run.heartbeat, counted):
                self._claim.release()
        if self._run.pid is None and self._returned.look(now):
            self._tools.changed()

    def _carry_out(self, effect: Effect) -> None:
        loop = asyncio.get_running_loop()
        match effect:
            case Effect.RESOLVE:
                self._run = EngineRun(self.want.name, self._tools, self.handle)
                self._resolving = loop.create_task(self._resolve())
            case Effect.CANCEL_RESOLVE if self._resolving is not None:
                self._resolving.cancel()
            case Effect.ADMIT if self._found is not None:
                wait_seconds = self._tools.settings.load_wait_seconds
                self._claim.ask(self._found.need_bytes, wait_seconds)
            case Effect.CANCEL_ADMIT:
                self._claim.cancel()
            case Effect.SPAWN:
                self._run.excuse_silence()
                self._run.note_progress(0, 0)
                self._living = loop.create_task(self._run.live())
            case Effect.LOAD if self._found is not None:
                wired = self._tools.memory.wired_limit_bytes(self.want.name)
                spec, settings = self.want.spec, self._tools.settings
                terms = self._tools.cache.terms(self.want.name)
                load = plan_load(spec, self._found.files, settings, self._limits, wired, terms)
                self._run.cache.begin(terms)
                self._run.send(load)
            case Effect.FAIL_STREAMS:
                self._run.streams.fail_all(*explain_end(self.want.name, self._state))
            case _:
                self._run.push(effect)

    async def _resolve(self) -> None:
        settings, resolver = self._tools.settings, self._tools.resolver
        fault = await asyncio.to_thread(self._tools.cache.fault, self.want.name)
        if fault:
            failed_ = lifecycle.ResolveFailed(fault, "CacheDirectoryMissing", permanent=False)
            self.handle(failed_)
            return
        found = await find_files(
            self.want.spec, resolver, self._run.note_progress, fused=settings.fused
        )
        if isinstance(found, Found):
            self._found = found
            self.handle(lifecycle.Resolved(f"its load needs {format_bytes(found.need_bytes)}"))
        else:
            self.handle(found)
