"""Where the time to a warm first token goes, on SmolLM2: `python -m tests.bench.warm_profile`.

The engine's own parts run in this process, without its socket: scheduler, runner, tiers on a real
disk. Every part's time is its own, without that of the parts it calls. Cold and warm rows run in
one process, one after the other, so their ratios hold on a machine that is not idle. The targets:
another ending after about 1,350 tokens takes at most 0.03 of cold, and after a restart 0.05.
"""

import argparse
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from node_agent.engine.batching.batch import BatchRunner
from node_agent.engine.batching.prefill import RowPrefill
from node_agent.engine.loading import LoadedModel, load
from node_agent.engine.messages import CacheSettings, Event, Load, Tokens
from node_agent.engine.meter import MemoryMeter
from node_agent.engine.prefix.kv_codec import Building, KvCodec
from node_agent.engine.prefix.prefix_cache import PrefixCache
from node_agent.engine.prefix.prefix_store import PrefixStore
from node_agent.engine.scheduling.scheduler import Scheduler
from node_agent.kvcache.restoring import Restoring
from node_agent.kvcache.ssd_store import SsdStore
from node_agent.kvcache.tiers import CacheTiers
from tests.bench.preload import restart_with_blas
from tests.support.cached_engine import prompt, row
from tests.support.fleet import SMOLLM2

PROMPT_TOKENS = 1350
ENDING_TOKENS = 7
SAID_TOKENS = 4
WARM_RATIO = 0.03
RESTART_RATIO = 0.05
# Not a multiple of anything.
SHARED_TOKENS = PROMPT_TOKENS - ENDING_TOKENS

PARTS: dict[str, list[tuple[type, str]]] = {
    "names (hashes)": [(PrefixCache, "name")],
    "lookup": [(CacheTiers, "plan"), (CacheTiers, "holds"), (SsdStore, "contains")],
    "wait for reads": [(Restoring, "poll")],
    "build": [(KvCodec, "begin"), (Building, "step")],
    "restore, the rest": [(RowPrefill, "restore")],
    "forward: chunks": [(RowPrefill, "feed")],
    "forward: join": [(BatchRunner, "join")],
    "first token": [(BatchRunner, "decode")],
    "cut new blocks": [(KvCodec, "cut")],
    "keep new blocks": [(CacheTiers, "keep")],
    "scheduler, the rest": [(Scheduler, "step"), (Scheduler, "submit")],
}


@dataclass
class Stopwatch:
    """Own seconds by part, of the thread that made it."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    inner: list[float] = field(default_factory=list)
    thread: int = field(default_factory=threading.get_ident)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time a part; what it calls is taken off."""
        if threading.get_ident() != self.thread:
            yield
            return
        started = time.perf_counter()
        self.inner.append(0.0)
        try:
            yield
        finally:
            took = time.perf_counter() - started
            self.seconds[name] += took - self.inner.pop()
            self.counts[name] += 1
            if self.inner:
                self.inner[-1] += took

    def wrap(self, owner: type, method: str, name: str) -> None:
        """Have a method timed from now on."""
        real: Callable[..., Any] = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.part(name):
                return real(*args, **kwargs)

        setattr(owner, method, timed)


@dataclass
class Row:
    """One measured row. `first` is the time to its first token."""

    name: str
    first: float
    cached_tokens: int
    seconds: dict[str, float]


class Engine:
    """An engine's parts over one cache directory."""

    def __init__(self, watch: Stopwatch, cache: CacheSettings) -> None:
        self.watch = watch
        self.store = PrefixStore(cache)
        memory = MemoryMeter()
        command = Load(model_path=str(SMOLLM2), model_fingerprint="smollm2", cache=cache)
        loaded: LoadedModel = load(command, lambda _done, _total: None, memory, self.store)
        assert loaded.prefixes is not None
        self.prefixes = loaded.prefixes
        self.scheduler = Scheduler(
            loaded.runner, loaded.vocab_size, memory, loaded.forecast, prefixes=loaded.prefixes
        )
        while not self.store.disk.store.link.state.ready:
            self.store.disk.writer.flush(1)

    def run(self, name: str, tokens: list[int]) -> Row:
        """Run a row to its end."""
        self.watch.seconds.clear()
        before = self.store.stats.snapshot().tokens_saved
        started = time.perf_counter()
        events: list[Event] = self.scheduler.submit(row(name, tokens, SAID_TOKENS))
        while not any(isinstance(event, Tokens) for event in events):
            events = self.scheduler.step()
        first, seconds = time.perf_counter() - started, dict(self.watch.seconds)
        while self.scheduler.busy:
            self.scheduler.step()
        self.store.disk.writer.flush(60)
        return Row(name, first, self.store.stats.snapshot().tokens_saved - before, seconds)

    def close(self) -> None:
        """Write what is queued."""
        self.store.close()


def measure(rounds: int) -> list[Row]:
    """Run the cases."""
    watch = Stopwatch()
    for name, methods in PARTS.items():
        for owner, method in methods:
            watch.wrap(owner, method, name)
    text, rows = prompt(PROMPT_TOKENS), []

    def ending(seed: int) -> list[int]:
        return [*text[:SHARED_TOKENS], 1000 - seed, *prompt(ENDING_TOKENS - 1, seed=seed)]

    with tempfile.TemporaryDirectory() as scratch:
        cache = CacheSettings(
            directory=f"{scratch}/kv", size_bytes=4 << 30, hot_bytes=1 << 30, block_tokens=256
        )
        engine = Engine(watch, cache)
        engine.run("warm-up", prompt(100, seed=5))
        rows.append(engine.run("cold", text))
        rows.append(engine.run("repeat", text))
        rows += [engine.run("another ending", ending(7 + n)) for n in range(rounds)]
        engine.close()
        for number in range(rounds):
            engine = Engine(watch, cache)
            engine.run("warm-up", prompt(100, seed=6 + number))
            rows.append(engine.run("restart, ending", ending(40 + number)))
            engine.close()
    return rows


def show(rows: list[Row]) -> None:
    """Print milliseconds by part, one column a row."""
    print(f"{'ms':22}" + "".join(f"{one.name:>17}" for one in rows))
    for part in PARTS:
        cells = "".join(f"{1e3 * one.seconds.get(part, 0.0):17.1f}" for one in rows)
        print(f"{part:22}{cells}")
    print(f"{'first token':22}" + "".join(f"{1e3 * one.first:17.1f}" for one in rows))
    print(f"{'cached tokens':22}" + "".join(f"{one.cached_tokens:17}" for one in rows))
    cold = rows[0].first
    print(f"{'of cold':22}" + "".join(f"{one.first / cold:17.4f}" for one in rows))


def main() -> int:
    """Print the table; return 1 when a warm row takes too long beside the cold one."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.warm_profile")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    restart_with_blas("tests.bench.warm_profile")
    if not SMOLLM2.is_dir():
        print(f"{SMOLLM2} is missing: make models")
        return 1
    rows = measure(options.rounds)
    show(rows)
    cold = rows[0].first
    warm = min(one.first for one in rows if one.name == "another ending") / cold
    restart = min(one.first for one in rows if one.name == "restart, ending") / cold
    print(f"another ending {warm:.4f} of cold, at most {WARM_RATIO}")
    print(f"after a restart {restart:.4f} of cold, at most {RESTART_RATIO}")
    return 0 if warm <= WARM_RATIO and restart <= RESTART_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
