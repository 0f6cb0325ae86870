"""What the pool of engines shows and offers to the rest of the agent.

The pool owns the engine processes. Others hand it the wanted set, read frozen views, and take
a lease to generate; nobody else starts, stops or talks to an engine.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from manifests.errors import Refusal
from manifests.kinds.engine import EnginePhase, EngineSpec
from node_agent.engine.messages import (
    Ask,
    ChunkMeasured,
    Command,
    Event,
    Generate,
    Heartbeat,
    Loaded,
)
from node_agent.pool.cache_side import CacheView
from node_agent.sources.base import ModelFiles


@dataclass(frozen=True, slots=True)
class EngineWant:
    """An engine that should run here; a change of `uid` or `spec` replaces the process."""

    name: str
    uid: str
    generation: int
    spec: EngineSpec


@dataclass(frozen=True, slots=True)
class RowView:
    """One request an engine holds. `began_at` is when it was sent, in the pool's clock.

    `prefilling` until its first token; `fed` once a part of its prompt is in.
    """

    request_id: str
    began_at: float
    prefilling: bool = True
    fed: bool = False


@dataclass(frozen=True, slots=True)
class EngineView:
    """One engine at one moment. Times are seconds of the pool's clock; None means not yet.

    `idle_seconds` counts from the end of its last request and is None while it has one.
    `evicted` means unloaded to make room, or on its way there (phase Stopped, before that
    Draining); the next request brings it back. `returning` means that one has asked for it and
    its load goes on. `load_seconds` is what its last load took, 0 before the first.

    `freed_bytes` is the footprint that its last unload gave back, known once the process is gone;
    `unwired_bytes` how far the machine's wired memory fell, known a little later and on macOS.
    """

    want: EngineWant
    phase: EnginePhase
    reason: str = ""
    message: str = ""
    files: ModelFiles | None = None
    loaded: Loaded | None = None
    heartbeat: Heartbeat | None = None
    heartbeat_age_seconds: float | None = None
    pid: int | None = None
    restarts: int = 0
    restart_in_seconds: float | None = None
    started_epoch_seconds: float | None = None
    progress_done_bytes: int = 0
    progress_total_bytes: int = 0
    running: int = 0
    waiting: int = 0
    prompt_tokens_left: int = 0
    prefill_tokens_per_second: float = 0.0
    prefill_context_tokens: float = 0.0
    decode_tokens_per_second: float = 0.0
    making_progress: bool = False
    idle_seconds: float | None = None
    leases: int = 0
    evicted: bool = False
    returning: bool = False
    load_seconds: float = 0.0
    freed_bytes: int | None = None
    unwired_bytes: int | None = None
    rows: tuple[RowView, ...] = ()
    cache: CacheView = field(default_factory=CacheView)

    @property
    def wakes(self) -> bool:
        """Whether a request may wait here for an unloaded engine to come back."""
        return self.evicted or self.returning

    @property
    def accepting(self) -> bool:
        """Whether a new request may be sent to it."""
        return self.phase is EnginePhase.READY and self.making_progress


class TokenStream(Protocol):
    """The events of one row; ends after Finished or Failed, also when the engine dies."""

    def __aiter__(self) -> AsyncIterator[Event]:
        """Yield PrefillProgress, Tokens, then one Finished or Failed."""
        ...

    def cancel(self) -> None:
        """Ask the engine to stop the row; harmless after its end."""
        ...


class Lease(Protocol):
    """The right to use one engine; it is not stopped for idleness while leased."""

    @property
    def view(self) -> EngineView:
        """The engine as it was when leased."""
        ...

    def generate(self, command: Generate) -> TokenStream:
        """Send one row. The stream fails at once when the engine is gone."""
        ...

    def release(self) -> None:
        """Give the lease back; a second call does nothing."""
        ...


class Pool(Protocol):
    """The engines of this machine."""

    def set_wanted(self, wanted: Mapping[str, EngineWant]) -> None:
        """Replace the wanted set; the pool converges on it. Level-triggered and idempotent."""
        ...

    def views(self) -> tuple[EngineView, ...]:
        """Return every engine, wanted or still stopping, sorted by name."""
        ...

    def lease(self, model: str) -> Lease | Refusal:
        """Take the least busy accepting engine that serves a public model name, atomically."""
        ...

    async def lease_ready(self, model: str, *, wait_seconds: float) -> Lease | Refusal:
        """Like `lease`, but bring an evicted engine back and wait for it, within the time."""
        ...

    def unload(self, name: str, reason: str, *, urgent: bool = False) -> bool:
        """Evict an idle engine, in one step; False when it is leased, pinned or not Ready.

        It stays wanted: a request loads it again. Its exit and what came back are in its view.
        False also within the minimum stay of an engine that a request just brought back, unless
        `urgent`. `reason` is for people and completes "unloaded: ...".
        """
        ...

    def send(self, name: str, command: Command) -> bool:
        """Pass Limits, CacheLimits, Abort, Reclaim or Answer to an engine; False without one.

        The last Limits are kept, and an engine that starts later begins under them.
        """
        ...

    def on_memory_event(self, callback: Callable[[str, ChunkMeasured | Ask], None]) -> None:
        """Call back with an engine's name and what it measured or asks for."""
        ...

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call back on the loop after any view changed; coalesced."""
        ...

    def log_path(self, name: str) -> Path | None:
        """Return the file with an engine's output, or None when never started here."""
        ...

    async def close(self, grace_seconds: float) -> None:
        """Stop every engine: shutdown, wait, TERM, wait, KILL."""
        ...
