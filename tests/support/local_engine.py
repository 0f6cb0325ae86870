"""The engine's own scheduler, runner and prefix store on the test's thread, without a process.

Deterministic but for the disk's writer thread, whose turn `settle` waits for. Imports MLX.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from node_agent.engine.loading import load
from node_agent.engine.messages import (
    CacheLimits,
    CacheReport,
    CacheSettings,
    Event,
    Failed,
    Finished,
    Generate,
    Load,
)
from node_agent.engine.meter import MemoryMeter
from node_agent.engine.prefix.prefix_store import PrefixStore
from node_agent.engine.scheduling.scheduler import Scheduler

WAIT_SECONDS = 60.0


class LocalEngine:
    """One loaded model; without a cache every row starts cold."""

    def __init__(
        self,
        model: Path,
        cache: CacheSettings | None = None,
        *,
        fingerprint: str = "model-a",
        chunk_tokens: int = 32,
        drafts: bool = True,
    ) -> None:
        self.store = None if cache is None else PrefixStore(cache)
        command = Load(
            model_path=str(model),
            chunk_tokens=chunk_tokens,
            model_fingerprint=fingerprint,
            drafts=drafts,
        )
        memory = MemoryMeter()
        loaded = load(command, lambda done, total: None, memory, self.store)
        assert not loaded.prefixes_fault, loaded.prefixes_fault
        self.fingerprint = loaded.announcement.cache_fingerprint
        self.prefixes = loaded.prefixes
        self.scheduler = Scheduler(
            loaded.runner, loaded.vocab_size, memory, prefixes=loaded.prefixes
        )

    def run(self, *commands: Generate) -> dict[str, list[Event]]:
        """Run rows together and return the events of each, by request id."""
        rows: dict[str, list[Event]] = {command.request_id: [] for command in commands}
        for command in commands:
            self.note(rows, self.scheduler.submit(command))
        self.finish(rows)
        return rows

    def finish(self, rows: dict[str, list[Event]]) -> None:
        """Step until every row has ended."""
        deadline = time.monotonic() + WAIT_SECONDS
        while self.scheduler.busy:
            assert time.monotonic() < deadline, "rows do not end"
            self.note(rows, self.scheduler.step())
        assert all(isinstance(events[-1], Finished | Failed) for events in rows.values())

    def note(self, rows: dict[str, list[Event]], events: Sequence[Event]) -> None:
        """Sort events by the rows they are of."""
        for event in events:
            request_id = getattr(event, "request_id", None)
            if request_id in rows:
                rows[request_id].append(event)

    def resize(self, **limits: int) -> None:
        """Hold other limits from now on."""
        assert self.store is not None
        self.store.resize(CacheLimits(**limits))

    def settle(self) -> CacheReport:
        """Wait until what was accepted for the disk is on it, and report."""
        assert self.store is not None
        if self.store.disk is not None:
            # A turn of the writer's thread, which opens the disk tier first.
            self.store.disk.writer.add_job(lambda: None)
            assert self.store.disk.writer.flush(WAIT_SECONDS)
        return self.store.report(self.fingerprint)

    def close(self) -> None:
        """Write what is queued and leave the directory in good order."""
        if self.store is not None:
            self.store.close()


@contextmanager
def local_engine(
    model: Path, cache: CacheSettings | None = None, **fields: object
) -> Iterator[LocalEngine]:
    """Load a model, and close its store at the end."""
    engine = LocalEngine(model, cache, **fields)
    try:
        yield engine
    finally:
        engine.close()
