"""Engines that serve while their disk is too small, read-only or gone: same words, and it recovers.

RAM keeps no blocks here, so whatever is restored comes from the disk.
"""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from node_agent.engine.messages import CacheReport, Failed, Finished, Tokens
from tests.support.cached_engine import (
    await_report,
    cached_engine,
    cached_tokens,
    ids,
    prompt,
    row,
    settings,
)
from tests.support.mlx_engine import BareEngine, bare_engine
from tests.support.tiny_models import tiny_model
from tests.support.volumes import Volume, volume_at

pytestmark = pytest.mark.processes

# A block of 256 tokens of the tiny model takes some 265 KB, an empty index some 60.
LENGTHS = (300, 513, 90, 270)
PROMPTS = [prompt(length, seed) for seed, length in enumerate(LENGTHS)]
NEW = prompt(290, seed=50)
RECOVERY_SECONDS = 90.0
Meanwhile = Callable[[], object]


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    """What an engine without a cache says."""
    with bare_engine(tiny_model("llama"), chunk_tokens=256) as cold:
        prompts = [*PROMPTS, NEW]
        rows = [row(f"cold-{number}", tokens) for number, tokens in enumerate(prompts)]
        return [ids(events) for events in cold.run(*rows).values()]


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Volume]:
    with volume_at(tmp_path / "volume") as made:
        yield made


class Served:
    """An engine that is asked all prompts again and again; every answer must be the right one."""

    def __init__(self, engine: BareEngine, expected: list[list[int]]) -> None:
        self.engine, self.expected, self.turns = engine, expected, 0

    def ask_all(self, meanwhile: Meanwhile | None = None) -> int:
        """Ask all together, act once the first speaks; return how many tokens were restored."""
        self.turns += 1
        names = [f"{self.turns}-{number}" for number in range(len(PROMPTS))]
        said: dict[str, list[int]] = {name: [] for name in names}
        restored, open_rows = 0, set(names)
        self.engine.send(*(row(*pair) for pair in zip(names, PROMPTS, strict=True)))
        while open_rows:
            event = next(self.engine.events)
            assert not isinstance(event, Failed), event
            if isinstance(event, Tokens):
                said[event.request_id] += event.ids
                if meanwhile is not None:
                    meanwhile()
                    meanwhile = None
            elif isinstance(event, Finished):
                open_rows.discard(event.request_id)
                restored += event.cached_tokens
        assert list(said.values()) == self.expected[:-1]
        return restored

    def await_state(self, reason: str, words: str = "") -> CacheReport:
        """Read up to a report that says this of the disk; the newest one may say so already."""
        told = [event for event in self.engine.seen if isinstance(event, CacheReport)]
        report = told[-1] if told else self.engine.await_event(CacheReport)
        while report.state_reason != reason or words not in report.state_message:
            report = self.engine.await_event(CacheReport)
        return report

    def recover(self) -> None:
        """Ask something new until it was stored and is restored, and the state is well."""
        deadline = time.monotonic() + RECOVERY_SECONDS
        restored = 0
        while not restored:
            assert time.monotonic() < deadline, self.engine.seen[-1]
            self.turns += 1
            events = self.engine.run(row(f"new-{self.turns}", NEW))[f"new-{self.turns}"]
            assert ids(events) == self.expected[-1]
            restored = cached_tokens(events)
        self.await_state("")


@contextmanager
def serving(directory: Path, memory_file: Path, expected: list[list[int]]) -> Iterator[Served]:
    """Run an engine whose cache is in a directory, from its first report of it on."""
    cache = settings(directory, hot_bytes=0, memory_file=str(memory_file))
    with cached_engine(tiny_model("llama"), cache, chunk_tokens=256) as engine:
        await_report(engine)
        yield Served(engine, expected)


def test_a_disk_smaller_than_the_index_or_than_a_block_costs_nothing(
    volume: Volume, expected: list[list[int]]
) -> None:
    """B38."""
    volume.mount("16k")
    with serving(volume.path / "kv", volume.path.with_name("memory"), expected) as served:
        served.await_state("DiskFull", "the index")
        assert served.ask_all() == 0
        volume.resize("200k")
        served.await_state("")
        assert served.ask_all() == 0
        served.await_state("DiskFull", "bytes free")
        assert list((volume.path / "kv" / "blocks").iterdir()) == []
        volume.resize("8m")
        served.recover()


def test_a_disk_with_room_for_three_blocks_holds_three_under_any_load(
    volume: Volume, expected: list[list[int]]
) -> None:
    """B38, B39."""
    volume.mount("1m")
    with serving(volume.path / "kv", volume.path.with_name("memory"), expected) as served:
        for _ in range(3):
            served.ask_all()
        report = await_report(served.engine, ssd_evictions=3)
        assert (report.state_reason, report.counters["faults"]) == ("", 0)
        served.recover()
        sizes = [path.stat().st_size for path in (volume.path / "kv" / "blocks").iterdir()]
        assert 1 <= sum(size > 200_000 for size in sizes) <= 3


def test_a_disk_that_turns_read_only_is_left_alone_until_it_is_writable(
    volume: Volume, expected: list[list[int]]
) -> None:
    """B40."""
    volume.mount("8m")
    with serving(volume.path / "kv", volume.path.with_name("memory"), expected) as served:
        served.ask_all(meanwhile=volume.turn_read_only)
        served.ask_all()
        report = served.await_state("ReadOnly")
        assert not report.writable
        assert "read-only" in report.state_message.lower()
        volume.unplug()  # the read-only view
        served.recover()


def test_a_disk_unplugged_while_rows_run_is_used_again_once_it_is_back(
    volume: Volume, expected: list[list[int]]
) -> None:
    """B40."""
    volume.mount("8m")
    with serving(volume.path / "kv", volume.path.with_name("memory"), expected) as served:
        served.ask_all()
        served.ask_all(meanwhile=volume.unplug)
        served.ask_all()
        served.await_state("VolumeAbsent")
        assert served.ask_all() == 0
        assert list(volume.path.iterdir()) == []
        volume.plug()
        served.recover()


def test_a_cache_directory_deleted_while_rows_run_is_made_again(
    tmp_path: Path, expected: list[list[int]]
) -> None:
    directory = tmp_path / "kv"
    with serving(directory, tmp_path / "memory", expected) as served:
        served.ask_all()
        served.ask_all(meanwhile=lambda: shutil.rmtree(directory))
        served.recover()
