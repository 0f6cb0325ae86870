"""A row that restores many blocks, beside one that decodes: a real model, runner and disk.

In this process and step by step, so that what happens between two steps can be counted.
"""

import os
import sqlite3
import threading
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from mlx_lm.utils import load_model

from node_agent.engine.batching.batch import BatchRunner
from node_agent.engine.batching.drafts import DraftBook
from node_agent.engine.batching.lanes import Lanes
from node_agent.engine.messages import (
    CacheSettings,
    Event,
    Failed,
    Finished,
    PrefillProgress,
    Restored,
    Tokens,
)
from node_agent.engine.meter import MemoryMeter
from node_agent.engine.prefix import prefix_cache
from node_agent.engine.prefix.kv_codec import KvCodec, describe_layers
from node_agent.engine.prefix.prefix_cache import PrefixCache
from node_agent.engine.prefix.prefix_store import PrefixStore
from node_agent.engine.scheduling.scheduler import Scheduler
from node_agent.kvcache import ssd_store
from node_agent.kvcache.readers import READER_THREADS
from node_agent.kvcache.ssd_watch import CALM_SECONDS, READ_SECONDS, DiskWatch
from tests.support.cached_engine import prompt, row
from tests.support.tiny_models import tiny_model

LONG = prompt(600)
PATIENCE_SECONDS = 30


class Parts:
    """An engine without its process; reading waits for `reads`."""

    def __init__(self, directory) -> None:
        self.seconds = 0.0
        cache = CacheSettings(
            directory=str(directory), size_bytes=1 << 30, hot_bytes=0, block_tokens=64
        )
        self.store = PrefixStore(cache)
        model = load_model(tiny_model("llama"))[0]
        codec = KvCodec(model, describe_layers(model))
        self.layers = len(codec.layout.layers)
        runner = BatchRunner(Lanes(model), 64, 4, DraftBook())
        self.prefixes = runner.prefixes = PrefixCache(codec, "model-a", self.store)
        self.scheduler = Scheduler(
            runner, 1000, MemoryMeter(), prefixes=self.prefixes, clock=lambda: self.seconds
        )
        self.reads = threading.Event()
        self.reads.set()
        get = self.store.disk.store.get

        def held_get(expected):
            assert self.reads.wait(PATIENCE_SECONDS)
            return get(expected)

        self.store.disk.store.get = held_get

    def submit(self, name: str, max_tokens: int, **fields: object) -> None:
        assert self.scheduler.submit(row(name, LONG, max_tokens, **fields)) == []

    def step_until(self, kind: type[Event], name: str, limit: int = 5000) -> list[list[Event]]:
        """Step until a row has such an event; return the events of each step."""
        steps: list[list[Event]] = []
        for _ in range(limit):
            steps.append(self.scheduler.step())
            if any(isinstance(one, kind) and one.request_id == name for one in steps[-1]):
                return steps
        raise AssertionError(f"no {kind.__name__} of {name}")

    def await_read(self) -> None:
        """Let the reads go on, and wait for all of them."""
        self.reads.set()
        idle = threading.Barrier(READER_THREADS)
        for read in [self.store.readers.submit(idle.wait) for _ in range(READER_THREADS)]:
            read.result(PATIENCE_SECONDS)


def said(steps: list[list[Event]], name: str) -> list[int]:
    return [
        token
        for events in steps
        for one in events
        if isinstance(one, Tokens) and one.request_id == name
        for token in one.ids
    ]


@pytest.fixture
def parts(tmp_path):
    """Blocks of a long prompt on the disk, none in RAM, and a row that decodes."""
    made = Parts(tmp_path / "kv")
    flushed = made.store.disk.writer
    # No disk hangs here, however long a busy machine lets a read wait.
    made.store.disk.store.link.watch = DiskWatch(lambda: 0.0)
    made.store.await_disk(PATIENCE_SECONDS)
    made.submit("first", 8)
    made.expected = said(made.step_until(Finished, "first"), "first")
    assert flushed.flush(PATIENCE_SECONDS)
    made.scheduler.submit(row("stream", prompt(20, seed=3), 2000))
    # Its first token is said before it is decoded.
    made.step_until(Tokens, "stream")
    made.scheduler.step()
    yield made
    made.reads.set()
    made.store.close()


@contextmanager
def held_index(parts):
    """Keep the index from answering, as another engine's commit does on a slow disk."""
    path = Path(parts.store.settings.directory) / "index.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield
        other.execute("ROLLBACK")


def test_a_row_asks_a_slow_index_again_before_it_computes_what_is_stored(parts, monkeypatch):
    monkeypatch.setattr(prefix_cache, "_LATE_SECONDS", PATIENCE_SECONDS)
    with held_index(parts):
        parts.submit("long", 8)
        waiting = [parts.scheduler.step() for _ in range(4)]
        # The stream goes on, and nothing is fed.
        assert len(said(waiting, "stream")) == 4
        fed = [one for events in waiting for one in events if isinstance(one, PrefillProgress)]
        assert fed == []
    end = parts.step_until(Finished, "long")
    assert said(end, "long") == parts.expected
    finished = next(one for one in end[-1] if isinstance(one, Finished))
    assert finished.cached_tokens == len(LONG) - 1


def test_a_row_starts_cold_when_the_index_never_answers(parts, monkeypatch):
    monkeypatch.setattr(prefix_cache, "_LATE_SECONDS", 0.0)
    misses = parts.store.stats.snapshot().misses
    with held_index(parts):
        parts.submit("long", 8)
        end = parts.step_until(Finished, "long")
    assert said(end, "long") == parts.expected
    finished = next(one for one in end[-1] if isinstance(one, Finished))
    assert finished.cached_tokens == 0
    assert parts.store.stats.snapshot().misses == misses + 1


def test_a_stream_says_a_token_between_any_two_pieces_of_a_restore(parts):
    parts.prefixes.restore_step_bytes = 1  # a layer each
    parts.reads.clear()
    parts.submit("long", 8)
    waiting = [parts.scheduler.step() for _ in range(20)]
    # Nothing is read yet; the stream does not care.
    assert len(said(waiting, "stream")) == 20
    parts.await_read()
    pieces = parts.step_until(Restored, "long")
    assert len(pieces) >= parts.layers
    assert [len(said([events], "stream")) for events in pieces] == [1] * len(pieces)
    assert pieces[-1][-1].request_id == "long"
    end = parts.step_until(Finished, "long")
    assert said([*pieces, *end], "long") == parts.expected
    finished = next(one for one in end[-1] if isinstance(one, Finished))
    assert finished.cached_tokens == len(LONG) - 1


@pytest.mark.parametrize("how", ["cancelled", "deadline", "cancelled while reading"])
def test_a_row_may_go_between_two_pieces_and_lets_its_blocks_go(parts, how):
    parts.prefixes.restore_step_bytes = 1
    parts.reads.clear()
    parts.submit("long", 8, deadline_seconds=60.0)
    parts.scheduler.step()
    if how != "cancelled while reading":
        parts.await_read()
        # The first piece is built in the first step that finds the blocks read.
        steps = (parts.scheduler.step() for _ in range(PATIENCE_SECONDS))
        assert any(parts.store.stats.snapshot().restores for _ in steps)
    if how == "deadline":
        parts.seconds = 61.0
        (end,) = [one for one in parts.scheduler.step() if isinstance(one, Failed)]
    else:
        (end,) = parts.scheduler.cancel("long")
    assert end.request_id == "long"
    parts.await_read()
    link = parts.store.disk.store.link
    with link.guarded() as session, session.database.reading() as connection:
        assert connection.execute("SELECT count(*) FROM leases").fetchone() == (0,)
    assert parts.store.stats.snapshot().restores == (how != "cancelled while reading")
    # Another one starts from the same blocks.
    parts.submit("again", 8)
    assert said(parts.step_until(Finished, "again"), "again") == parts.expected


def test_a_row_goes_on_cold_when_the_disk_hangs_and_the_next_one_is_warm_again(parts, monkeypatch):
    link, disk_seconds, read_file = parts.store.disk.store.link, [0.0], ssd_store.read_file
    link.watch = DiskWatch(lambda: disk_seconds[0])
    stuck = threading.Semaphore(0)
    out, into = os.pipe()

    def stuck_read(folder, name, progress):
        stuck.release()
        os.read(out, 1)
        return read_file(folder, name, progress)

    monkeypatch.setattr(ssd_store, "read_file", stuck_read)
    parts.submit("long", 8)
    parts.scheduler.step()
    assert all(stuck.acquire(timeout=PATIENCE_SECONDS) for _ in range(READER_THREADS))
    disk_seconds[0] += READ_SECONDS
    cold = parts.step_until(Finished, "long")
    assert said(cold, "long") == parts.expected
    assert said(cold, "stream")
    finished = next(one for one in cold[-1] if isinstance(one, Finished))
    assert finished.cached_tokens == 0
    report = parts.store.report("model-a")
    assert (report.state_reason, report.writable) == ("DiskNotResponding", False)
    assert report.counters["stalls"] == 1
    os.close(into)
    parts.await_read()
    disk_seconds[0] += CALM_SECONDS
    assert parts.store.report("model-a").state_reason == ""
    parts.submit("again", 8)
    warm = parts.step_until(Finished, "again")
    assert said(warm, "again") == parts.expected
    finished = next(one for one in warm[-1] if isinstance(one, Finished))
    assert finished.cached_tokens == len(LONG) - 1
