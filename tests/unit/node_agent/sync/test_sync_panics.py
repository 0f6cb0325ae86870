"""Panics that count against this node, until when, and what is remembered of them."""

from pathlib import Path

import pytest

from node_agent.host.base import KernelPanic, PanicScan
from node_agent.host.detect import detect_host
from node_agent.host.simulated import SimulatedHost, SimulatedMachine
from node_agent.sync.panic_watch import PanicWatch, decode_history, encode_history
from node_agent.sync.panics_plan import (
    WINDOW_SECONDS,
    PanicHistory,
    PanicStanding,
    follow_annotation,
    judge_panics,
    remember_boot,
    take_in_scan,
)

NOW = 1_795_400_000.0


def panic(boot: str, age: float = 10.0) -> KernelPanic:
    return KernelPanic(boot, "underflow", "python3.12", NOW - age)


def known(*panics: KernelPanic) -> PanicHistory:
    history = PanicHistory()
    for item in panics:
        history = remember_boot(history, item.boot_id)
    return take_in_scan(history, PanicScan(panics), NOW)


@pytest.mark.parametrize(("count", "ratio"), [(0, 1.0), (1, 0.9), (2, 0.81), (3, 0.729), (9, 0.7)])
def test_each_panic_lowers_the_ceilings_down_to_a_floor(count: int, ratio: float) -> None:
    standing = judge_panics(known(*(panic(f"B{i}") for i in range(count))), "", NOW)
    assert standing.ceiling_ratio == pytest.approx(ratio)


def test_a_panic_of_a_boot_without_this_agent_is_none_of_ours() -> None:
    assert (
        take_in_scan(remember_boot(PanicHistory(), "A"), PanicScan((panic("B"),)), NOW).panics == ()
    )


def test_a_panic_counts_for_fourteen_days_even_when_its_report_is_removed() -> None:
    history = take_in_scan(known(panic("A", WINDOW_SECONDS - 5)), PanicScan(), NOW)
    assert len(judge_panics(history, "", NOW).counting) == 1
    assert judge_panics(history, "", NOW + 10).counting == ()


def test_a_report_without_a_date_counts_from_when_it_was_found() -> None:
    history = take_in_scan(
        remember_boot(PanicHistory(), "a"), PanicScan((KernelPanic("A", "x"),)), NOW
    )
    assert history.panics[0].epoch_seconds == NOW


def test_a_person_clears_what_is_known_and_a_later_panic_counts_again() -> None:
    history = follow_annotation(known(panic("A")), "yes")
    assert judge_panics(history, "", NOW).counting == ()
    history = take_in_scan(remember_boot(history, "B"), PanicScan((panic("B"),)), NOW)
    history = follow_annotation(history, "yes")
    assert [item.boot_id for item in judge_panics(history, "", NOW).counting] == ["B"]
    assert judge_panics(follow_annotation(history, "again"), "", NOW).counting == ()
    taken_away = follow_annotation(follow_annotation(history, ""), "yes")
    assert judge_panics(taken_away, "", NOW).counting == ()


def test_the_history_survives_its_file(tmp_path: Path) -> None:
    history = follow_annotation(known(panic("A"), panic("B")), "yes")
    assert decode_history(encode_history(history)) == history
    with pytest.raises(ValueError, match="panic history"):
        decode_history("{}")


def watch(tmp_path: Path, scan: PanicScan | None, told: list[int]) -> PanicWatch:
    host = SimulatedHost(detect_host(), SimulatedMachine(16 << 30), scan)
    return PanicWatch(host, tmp_path / "panics.json", lambda: told.append(1), lambda: NOW)


async def test_the_watch_remembers_the_boot_and_finds_its_panic_after_the_next(
    tmp_path: Path,
) -> None:
    told: list[int] = []
    first = watch(tmp_path, PanicScan(), told)
    await first.scan()
    assert first.ceiling_ratio == 1.0
    boot = detect_host().info().boot_id.upper()
    second = watch(tmp_path, PanicScan((panic(boot), panic("OTHER"))), told)
    await second.scan()
    assert second.ceiling_ratio == pytest.approx(0.9)
    before = len(told)
    second.follow_annotation("seen to")
    assert second.ceiling_ratio == 1.0
    assert len(told) == before + 1
    assert watch(tmp_path, PanicScan(), told).standing is None


async def test_reports_that_cannot_be_read_are_unknown(tmp_path: Path) -> None:
    found = watch(tmp_path, PanicScan(fault="denied"), [])
    await found.scan()
    assert found.standing == PanicStanding((), "denied")
    silent = watch(tmp_path, None, [])
    await silent.scan()
    assert silent.standing is None


def test_a_broken_file_is_started_anew(tmp_path: Path) -> None:
    (tmp_path / "panics.json").write_text("{")
    assert watch(tmp_path, None, []).ceiling_ratio == 1.0
