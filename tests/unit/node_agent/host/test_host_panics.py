"""Panic reports of macOS, from recorded forms."""

import json
import os
from pathlib import Path

import pytest

from node_agent.host.base import KernelPanic
from node_agent.host.panics import observe_panics, parse_panic, parse_stamp

BOOT = "6C1D0A11-0000-4000-8000-00000000ABCD"
WORDS = (
    'panic(cpu 7 caller 0xfffffe0041aa28e0): "completeMemory() prepare count underflow" '
    "@IOGPUMemory.cpp:550\nDebugger message: panic\nOS version: 25F84\n"
    f"Boot session UUID: {BOOT}\n"
    "Panicked task 0xfffffe2a: 1305228 pages, 61 threads: pid 4711: python3.12\nKernel slide: 1\n"
)
HEADER = {
    "bug_type": "210",
    "timestamp": "2026-11-20 03:14:07.00 +0000",
    "os_version": "macOS 26.5.2 (25F84)",
    "incident_id": "0F3A",
}
PANIC = KernelPanic(
    boot_id=BOOT,
    signature='"completeMemory() prepare count underflow" @IOGPUMemory.cpp:550',
    task="python3.12",
    epoch_seconds=1795144447.0,
)


def report(indent: int | None = None) -> str:
    body = {"build": "macOS 26.5.2 (25F84)", "product": "Mac16,9", "panicString": WORDS}
    return json.dumps(HEADER) + "\n" + json.dumps(body, indent=indent)


@pytest.mark.parametrize("indent", [None, 2])
def test_a_report_tells_the_boot_the_panic_and_the_task(indent: int | None) -> None:
    assert parse_panic(report(indent)) == PANIC


def test_a_report_that_was_cut_short_still_names_its_boot() -> None:
    text = report()
    cut = parse_panic(text[: text.index("Kernel slide")])
    assert cut is not None
    assert (cut.boot_id, cut.task, cut.signature) == (BOOT, "python3.12", PANIC.signature)


def test_a_plain_text_report_of_an_older_system_is_read() -> None:
    found = parse_panic(f"2022-06-01 12:00:00 +0200\n{WORDS}")
    assert found is not None
    assert (found.boot_id, found.epoch_seconds) == (BOOT, 1654077600.0)


@pytest.mark.parametrize(
    "text", ["", "{}", "{}\n{}", '{"a": 1}\n{"panicString": "no uuid"}', "[]\n[1]"]
)
def test_a_report_without_a_boot_session_proves_nothing(text: str) -> None:
    assert parse_panic(text) is None


def test_a_time_is_read_with_its_zone_and_nonsense_is_none() -> None:
    assert parse_stamp("2026-11-20 03:14:07.00 +0000") == 1795144447.0
    assert parse_stamp("2026-11-20 05:14:07.00 +0200") == 1795144447.0
    assert parse_stamp("yesterday") == 0.0


def test_a_folder_is_read_by_name_and_a_panic_with_two_reports_is_one(tmp_path: Path) -> None:
    (tmp_path / "panic-full-2026-11-20-031407.0002.ips").write_text(report())
    (tmp_path / "panic-base-2026-11-20-031407.0002.ips").write_text(report(2))
    (tmp_path / "JetsamEvent-2026-11-21.ips").write_text(report())
    (tmp_path / "Kernel-2026-11-20-120000.panic").write_text("no uuid in here")
    assert observe_panics(tmp_path).panics == (PANIC,)
    assert observe_panics(tmp_path).fault == ""


def test_a_folder_that_cannot_be_read_is_unknown_and_not_empty(tmp_path: Path) -> None:
    scan = observe_panics(tmp_path / "missing")
    assert scan.panics == ()
    assert "missing" in scan.fault


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_report_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.panic").write_text(report())
    (tmp_path / "a.panic").chmod(0)
    assert "a.panic" in observe_panics(tmp_path).fault


def test_a_report_that_is_a_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "b.panic").write_text(report())
    (tmp_path / "a.panic").mkdir()
    scan = observe_panics(tmp_path)
    assert scan.panics == (PANIC,)
    assert "a.panic" in scan.fault
