import pytest

from tests.bench.peer_verdicts import (
    MORE,
    Row,
    describe_target,
    format_table,
    judge,
    warn_of_other_work,
)

RATE = Row("output", "rate", unit="tok/s", better=MORE, against_best=1.1)
WALL = Row("wall", "wall", against_best=0.7)
GAP = Row("gap", "gap", at_most=1.0)
RESTART = Row("restart / cold", "back", unit="", over="cold", at_most=0.05)

Measured = dict[str, list[dict[str, float]]]


def measure(key: str, ours: float, **peers: float) -> Measured:
    return {name: [{key: value}] for name, value in {"ours": ours, **peers}.items()}


@pytest.mark.parametrize(("ours", "met"), [(11.0, True), (10.9, False)])
def test_a_rate_is_compared_with_the_highest_of_the_peers(ours: float, met: bool) -> None:
    verdict = judge(RATE, measure("rate", ours, slow=5.0, fast=10.0), "ours")
    assert (verdict.best_peer, verdict.met) == ("fast", met)
    assert verdict.ratio == pytest.approx(ours / 10)


@pytest.mark.parametrize(("ours", "met"), [(7.0, True), (7.1, False)])
def test_a_time_is_compared_with_the_lowest_of_the_peers(ours: float, met: bool) -> None:
    verdict = judge(WALL, measure("wall", ours, slow=20.0, fast=10.0), "ours")
    assert (verdict.best_peer, verdict.met) == ("fast", met)


def test_a_limit_of_our_own_needs_no_peer() -> None:
    assert judge(GAP, measure("gap", 0.9), "ours").met is True
    assert judge(GAP, measure("gap", 1.1, fast=30.0), "ours").met is False


def test_a_row_may_show_one_figure_over_another() -> None:
    measured = {"ours": [{"back": 0.2, "cold": 5.0}], "peer": [{"back": 1.5, "cold": 6.0}]}
    verdict = judge(RESTART, measured, "ours")
    assert verdict.figures == {"ours": pytest.approx(0.04), "peer": pytest.approx(0.25)}
    assert verdict.met is True


def test_the_best_pass_counts_of_a_figure_and_the_median_of_a_quotient() -> None:
    passes = [{"rate": 9.0, "wall": 7.0}, {"rate": 11.0, "wall": 9.0}, {}]
    assert judge(RATE, {"ours": passes}, "ours").figures == {"ours": 11.0}
    assert judge(WALL, {"ours": passes}, "ours").figures == {"ours": 7.0}
    colds = [{"back": 0.2, "cold": cold} for cold in (2.0, 4.0, 20.0)]
    assert judge(RESTART, {"ours": colds}, "ours").figures == {"ours": pytest.approx(0.05)}


def test_a_failed_peer_is_left_out_of_the_comparison() -> None:
    measured: Measured = {"ours": [{"wall": 6.0}], "broken": [{}], "peer": [{"wall": 10.0}]}
    verdict = judge(WALL, measured, "ours")
    assert (verdict.best_peer, verdict.met) == ("peer", True)


def test_our_own_failure_misses_the_target() -> None:
    assert judge(WALL, {"ours": [{}], "peer": [{"wall": 10.0}]}, "ours").met is False
    assert judge(RESTART, {"ours": [{"back": 0.2}], "peer": [{}]}, "ours").met is False


def test_nothing_is_said_without_ours_or_without_a_peer() -> None:
    assert judge(WALL, {"peer": [{"wall": 10.0}]}, "ours").met is None
    assert judge(WALL, measure("wall", 10.0), "ours").met is None


def test_a_row_that_only_informs_has_no_best_peer() -> None:
    row = Row("prompt", "prompt", unit="tokens", better="")
    verdict = judge(row, measure("prompt", 500.0, peer=500.0), "ours")
    assert (verdict.best_peer, verdict.ratio, verdict.met) == ("", None, None)


def test_a_target_is_written_out() -> None:
    assert describe_target(RATE) == ">= 1.1 x best"
    assert describe_target(GAP) == "<= 1 s"
    assert describe_target(Row("x", "x")) == ""


def test_the_table_has_a_column_for_each_server_and_a_dash_where_nothing_is_known() -> None:
    measured: Measured = {"ours": [{"wall": 8.0}], "broken": [{}], "peer": [{"wall": 10.0}]}
    head, line = format_table([judge(WALL, measured, "ours")], list(measured))
    assert head.split()[:3] == ["ours", "broken", "peer"]
    cells = ["wall,", "s", "8.000", "-", "10.0", "peer", "0.80", "<=", "0.7", "x", "best", "NO"]
    assert line.split() == cells


def test_figures_spoilt_by_other_work_are_named() -> None:
    assert warn_of_other_work({"ours": 0.02, "peer": 0.05}, 0.1) == ""
    assert warn_of_other_work({"ours": 0.02, "peer": 0.42}, 0.1).endswith(": peer 42%")
