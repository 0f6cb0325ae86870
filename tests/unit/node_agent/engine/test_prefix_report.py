"""What the agent is told about stored prefixes, how often, and that limits take effect."""

import threading
from pathlib import Path

from node_agent.engine.messages import CacheLimits, CacheReport, CacheSettings, PrefixesHeld
from node_agent.engine.prefix.prefix_report import NAMES_PER_MESSAGE, PrefixReporter, plan_names
from node_agent.engine.prefix.prefix_store import PrefixStore
from tests.support.kv_blocks import DENSE, FINGERPRINT, block, long_chain


def apply(told: set[bytes], messages) -> set[bytes]:
    for one in messages:
        told = set(one.added) if one.full else (told | set(one.added)) - set(one.removed)
    return told


def test_names_are_told_in_full_once_and_then_as_changes():
    assert list(plan_names(None, frozenset())) == [PrefixesHeld(full=True)]
    assert list(plan_names(frozenset({b"a"}), frozenset({b"a"}))) == []
    (change,) = plan_names(frozenset({b"a", b"b"}), frozenset({b"b", b"c"}))
    assert change == PrefixesHeld(full=False, added=[b"c"], removed=[b"a"])


def test_many_names_go_in_several_messages():
    names = frozenset(number.to_bytes(32, "big") for number in range(2 * NAMES_PER_MESSAGE + 5))
    messages = list(plan_names(None, names))
    assert [one.full for one in messages] == [True, False, False]
    assert apply(set(), messages) == names
    assert apply(set(names), plan_names(names, frozenset())) == set()


def test_a_report_comes_once_a_second_when_something_changed():
    store, now = PrefixStore(CacheSettings(hot_bytes=1 << 20, block_tokens=4)), [100.0]
    reporter = PrefixReporter(store, (FINGERPRINT, DENSE), lambda: now[0])
    report, names = reporter.events()
    assert isinstance(report, CacheReport)
    assert names == PrefixesHeld(full=True)
    chain = long_chain(2)
    store.hot.put(block(chain, 0))
    assert reporter.events() == []
    now[0] += 1
    report, names = reporter.events()
    assert (report.hot_blocks, report.state_reason) == (1, "")
    now[0] += 1
    assert reporter.events() == []
    store.resize(CacheLimits(hot_bytes=0))
    now[0] += 1
    report, names = reporter.events()
    assert (report.hot_blocks, report.hot_capacity_bytes) == (0, 0)
    assert report.counters["hot_evictions"] == 1


def test_a_directory_that_cannot_be_used_is_told(tmp_path: Path):
    (tmp_path / "file").write_text("")
    settings = CacheSettings(directory=str(tmp_path / "file" / "kv"), size_bytes=1 << 20)
    store = PrefixStore(settings)
    try:
        assert store.disk is not None
        tried = threading.Event()
        store.disk.writer.add_job(tried.set)
        assert tried.wait(10)
        report = store.report(FINGERPRINT)
        assert (report.state_reason, report.writable) == ("DirectoryMissing", False)
        assert str(tmp_path) in report.state_message
    finally:
        store.close()
