import pytest

from tests.bench.peer_machine import Work, busy_elsewhere_ratio, observe_work


def test_what_the_bench_spends_itself_is_not_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    before = Work(at=100.0, machine=50.0, own=10.0)
    assert busy_elsewhere_ratio(before, Work(at=110.0, machine=70.0, own=30.0)) == 0
    assert busy_elsewhere_ratio(before, Work(at=110.0, machine=66.0, own=16.0)) == 0.5


def test_the_readings_only_grow() -> None:
    first, second = observe_work(), observe_work()
    assert second.at >= first.at
    assert second.machine >= first.machine > 0
    assert second.own >= first.own > 0
