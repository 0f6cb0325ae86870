"""A pool whose engines follow a script, for tests of the agent's HTTP side.

It keeps the contracts of `node_agent.pool.base` and `node_agent.memory.base` and writes down
what was asked of it. A script is given each row's `Generate` and yields the row's events; a
cancelled row ends with Finished(reason="cancelled") at its next step.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from manifests.errors import Code, Refusal, Retryable
from manifests.kinds.engine import EnginePhase, EngineSpec
from manifests.sizing.estimate import LayerGroup, LayerKind, ModelShape
from node_agent.engine.messages import (
    Ask,
    ChunkMeasured,
    Command,
    Event,
    Finished,
    Generate,
    PrefillProgress,
    TokenLogprobs,
    Tokens,
)
from node_agent.memory.base import AdmissionRequest
from node_agent.pool.base import EngineView, EngineWant
from node_agent.sources.base import ModelFiles

Script = Callable[[Generate], AsyncIterator[Event]]


def scripted_shape(context_tokens: int = 4096) -> ModelShape:
    """Return a small llama's shape."""
    return ModelShape(
        model_type="llama",
        groups=(LayerGroup(kind=LayerKind.FULL, layers=4, bytes_per_token=256),),
        hidden_size=64,
        intermediate_size=128,
        attention_heads=4,
        kv_heads=2,
        head_dim=16,
        vocab_size=420,
        dtype_bytes=4,
        context_tokens=context_tokens,
    )


def scripted_view(directory: Path, model: str = "tiny", **spec: object) -> EngineView:
    """Return a ready engine of a model directory; `spec` are further fields as in YAML."""
    declared = EngineSpec.model_validate(
        {"model": model, "node": "n", "revision": "r", "source": {"path": str(directory)}, **spec}
    )
    return EngineView(
        want=EngineWant(f"{model}-0", "uid", 1, declared),
        phase=EnginePhase.READY,
        files=ModelFiles(directory, 1, "sha256:0123456789abcdef", scripted_shape()),
        making_progress=True,
        started_epoch_seconds=1_700_000_000.0,
    )


def say(pieces: Sequence[Sequence[int]], reason: str = "stop", endless: bool = False) -> Script:
    """Return a script that feeds the prompt once and says these tokens within the cap."""

    async def script(command: Generate) -> AsyncIterator[Event]:
        size = len(command.prompt)
        yield PrefillProgress(
            request_id=command.request_id,
            done_tokens=size,
            total_tokens=size,
            chunk_tokens=size,
            seconds=0.01,
        )
        count = 0
        while True:
            for ids in pieces:
                room = command.max_tokens - count
                sent = list(ids)[:room]
                if sent:
                    yield tokens_event(command, sent)
                    count += len(sent)
                if count >= command.max_tokens:
                    yield finished(command, "length", count)
                    return
                await asyncio.sleep(0)
            if not endless:
                break
        yield finished(command, reason, count)

    return script


def tokens_event(command: Generate, ids: list[int]) -> Tokens:
    """Return new tokens, with log-probabilities when the row asked for them."""
    top = command.sampling.top_logprobs
    logprobs = [
        TokenLogprobs(logprob=-0.5, top=[(number, -0.5), (number + 1, float("-inf"))][:top])
        for number in ids
        if top is not None
    ]
    return Tokens(request_id=command.request_id, ids=ids, logprobs=logprobs)


def finished(command: Generate, reason: str, count: int) -> Finished:
    """Return a row's end."""
    return Finished(
        request_id=command.request_id,
        reason=reason,
        prompt_tokens=len(command.prompt),
        completion_tokens=count,
        cached_tokens=min(2, len(command.prompt)),
    )


@dataclass
class ScriptedStream:
    """Implements TokenStream."""

    command: Generate
    script: Script
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    async def __aiter__(self) -> AsyncIterator[Event]:
        events = self.script(self.command)
        while not self.cancelled.is_set():
            step = asyncio.ensure_future(anext(events, None))
            stop = asyncio.ensure_future(self.cancelled.wait())
            await asyncio.wait({step, stop}, return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()
            if not step.done():
                step.cancel()
                break
            event = step.result()
            if event is None:
                return
            yield event
        yield finished(self.command, "cancelled", 0)

    def cancel(self) -> None:
        self.cancelled.set()


class ScriptedLease:
    """Implements Lease."""

    def __init__(self, pool: "ScriptedPool", view: EngineView) -> None:
        self._pool, self.view = pool, view

    def generate(self, command: Generate) -> ScriptedStream:
        stream = ScriptedStream(command, self._pool.script)
        self._pool.streams.append(stream)
        self._pool.started.set()
        return stream

    def release(self) -> None:
        self._pool.leases.discard(self)
        self._pool.notify()


@dataclass
class ScriptedPool:
    """Implements Pool."""

    engines: list[EngineView]
    script: Script
    logs: dict[str, Path] = field(default_factory=dict)
    streams: list[ScriptedStream] = field(default_factory=list)
    leases: set[ScriptedLease] = field(default_factory=set)
    callbacks: list[Callable[[], None]] = field(default_factory=list)
    unloads: list[tuple[str, str, bool]] = field(default_factory=list)
    sent: list[tuple[str, Command]] = field(default_factory=list)
    memory_callbacks: list[Callable[[str, ChunkMeasured | Ask], None]] = field(default_factory=list)
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    started: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def commands(self) -> list[Generate]:
        """Every row that was sent."""
        return [stream.command for stream in self.streams]

    def set_wanted(self, wanted: Mapping[str, EngineWant]) -> None:
        self.engines = [view for view in self.engines if view.want.name in wanted]
        self.changed()

    def views(self) -> tuple[EngineView, ...]:
        return tuple(self.engines)

    def lease(self, model: str) -> ScriptedLease | Refusal:
        named = [v for v in self.engines if model in (v.want.spec.model, *v.want.spec.aliases)]
        if not named:
            return Refusal(Code.MODEL_NOT_FOUND, "No such model.", param="model")
        ready = [view for view in named if view.accepting]
        if not ready:
            return Refusal(Code.ENGINE_NOT_READY, "Not ready.", Retryable.ELSEWHERE)
        lease = ScriptedLease(self, ready[0])
        self.leases.add(lease)
        self.idle.clear()
        return lease

    async def lease_ready(self, model: str, *, wait_seconds: float) -> ScriptedLease | Refusal:
        """Nothing here is ever unloaded, so nothing comes back by waiting."""
        del wait_seconds
        return self.lease(model)

    def unload(self, name: str, reason: str, *, urgent: bool = False) -> bool:
        self.unloads.append((name, reason, urgent))
        return True

    def send(self, name: str, command: Command) -> bool:
        self.sent.append((name, command))
        return any(view.want.name == name for view in self.engines)

    def on_memory_event(self, callback: Callable[[str, ChunkMeasured | Ask], None]) -> None:
        self.memory_callbacks.append(callback)

    def on_change(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)

    def log_path(self, name: str) -> Path | None:
        return self.logs.get(name)

    async def close(self, grace_seconds: float) -> None:
        """Nothing runs."""

    def update(self, **fields: object) -> None:
        """Change the first engine and tell."""
        self.engines[0] = replace(self.engines[0], **fields)  # type: ignore[arg-type]
        self.changed()

    def changed(self) -> None:
        """Tell those who asked."""
        for callback in self.callbacks:
            callback()

    def notify(self) -> None:
        """Note that a lease came back."""
        if not self.leases:
            self.idle.set()


@dataclass(eq=False)
class CountedReservation:
    """Implements Reservation."""

    held: set["CountedReservation"]

    def release(self) -> None:
        self.held.discard(self)


@dataclass
class ScriptedAdmission:
    """Implements Admission; refuses when told to."""

    refusal: Refusal | None = None
    asked: list[AdmissionRequest] = field(default_factory=list)
    held: set[CountedReservation] = field(default_factory=set)

    async def admit(
        self, request: AdmissionRequest, *, wait_seconds: float = 0.0
    ) -> CountedReservation | Refusal:
        del wait_seconds
        self.asked.append(request)
        return self._reserve() if self.refusal is None else self.refusal

    async def admit_load(
        self, engine: str, need_bytes: int, *, wait_seconds: float = 0.0
    ) -> CountedReservation | Refusal:
        del engine, need_bytes, wait_seconds
        return self._reserve() if self.refusal is None else self.refusal

    def _reserve(self) -> CountedReservation:
        reservation = CountedReservation(self.held)
        self.held.add(reservation)
        return reservation
