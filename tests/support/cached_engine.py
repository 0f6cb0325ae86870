"""A real engine with a prefix cache, and rows whose restored tokens are looked at."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from node_agent.engine.messages import (
    CacheReport,
    CacheSettings,
    Event,
    Finished,
    Generate,
    Load,
    PrefixesHeld,
    Restored,
    SamplingParams,
    Tokens,
)
from tests.support.mlx_engine import BareEngine

HOT_BYTES = 64 << 20
DISK_BYTES = 256 << 20


def settings(directory: Path | None = None, **fields: object) -> CacheSettings:
    """Return a cache in RAM, and on the disk with a directory."""
    given: dict[str, object] = {"hot_bytes": HOT_BYTES, "size_bytes": DISK_BYTES}
    given["directory"] = "" if directory is None else str(directory)
    return CacheSettings(**{**given, **fields})


@contextmanager
def cached_engine(
    model: Path, cache: CacheSettings, fingerprint: str = "model-a", **fields: int
) -> Iterator[BareEngine]:
    """Run an engine with a model loaded and a prefix cache, and stop it."""
    engine = BareEngine()
    try:
        load = Load(model_path=str(model), model_fingerprint=fingerprint, cache=cache, **fields)
        engine.send(load)
        engine.await_loaded()
        yield engine
    finally:
        assert engine.stop() == 0


def prompt(length: int, seed: int = 0) -> list[int]:
    """Return a prompt whose every block differs from that of another seed."""
    return [20 + (position * 7 + seed * 131) % 900 for position in range(length)]


def row(name: str, tokens: list[int], max_tokens: int = 8, **fields: object) -> Generate:
    """Return a greedy row that runs to its limit."""
    return Generate(
        request_id=name,
        prompt=tokens,
        max_tokens=max_tokens,
        sampling=SamplingParams(temperature=0),
        **fields,
    )


def ids(events: list[Event]) -> list[int]:
    """Return the tokens of one row."""
    return [token for event in events if isinstance(event, Tokens) for token in event.ids]


def cached_tokens(events: list[Event]) -> int:
    """Return what a row was started from; what was told on the way must agree."""
    end = events[-1]
    assert isinstance(end, Finished), end
    told = [event.tokens for event in events if isinstance(event, Restored)]
    assert told == ([end.cached_tokens] if end.cached_tokens else [])
    return end.cached_tokens


def await_report(engine: BareEngine, **at_least: float) -> CacheReport:
    """Read up to a report whose counters are at least these."""
    while True:
        report = engine.await_event(CacheReport)
        if all(report.counters[name] >= count for name, count in at_least.items()):
            return report


def await_held(engine: BareEngine, names: set[bytes]) -> None:
    """Read until all these names were told."""
    while not names <= held(engine):
        engine.await_event(PrefixesHeld)


def held(engine: BareEngine) -> set[bytes]:
    """Return the names told so far."""
    names: set[bytes] = set()
    for event in engine.seen:
        if isinstance(event, PrefixesHeld):
            names = set(event.added) if event.full else (names | set(event.added))
            names -= set(event.removed)
    return names
