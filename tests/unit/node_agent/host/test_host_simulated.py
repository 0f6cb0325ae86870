"""A simulated Mac: declared RAM, real footprints."""

import os
from pathlib import Path

import pytest

from node_agent.host.base import PanicScan
from node_agent.host.blas import find_openblas, parse_ldconfig
from node_agent.host.detect import detect_host
from node_agent.host.simulated import SimulatedHost, SimulatedMachine

GIB = 1 << 30


def simulated(ram_gib: int, **more: int) -> SimulatedHost:
    return SimulatedHost(detect_host(), SimulatedMachine(ram_gib * GIB, **more))


def test_declared_ram_stands_for_the_machines_and_is_marked() -> None:
    info = simulated(512).info()
    assert (info.ram_bytes, info.simulated) == (512 * GIB, True)


def test_what_engines_hold_and_other_apps_use_is_not_free() -> None:
    memory = simulated(16, wired_limit_bytes=12 * GIB, other_apps_bytes=3 * GIB).reading(5 * GIB)
    assert memory.free_bytes == 8 * GIB
    assert memory.active_bytes == 3 * GIB
    assert memory.wired_limit_bytes == 12 * GIB


def test_other_apps_can_grow_past_the_machine_without_negative_memory() -> None:
    host = simulated(16)
    host.set_other_apps_bytes(64 * GIB)
    assert host.reading(5 * GIB).free_bytes == 0


def test_a_file_lets_other_apps_grow_while_the_agent_runs(tmp_path: Path) -> None:
    others = tmp_path / "others"
    others.write_text("3Gi\n")
    host = SimulatedHost(detect_host(), SimulatedMachine(16 * GIB, other_apps_file=others))
    assert host.reading(0).active_bytes == 3 * GIB
    others.write_text("12Gi")
    assert host.reading(0).free_bytes == 4 * GIB
    others.write_text("much")
    with pytest.raises(OSError, match="much"):
        host.reading(0)
    host.set_other_apps_bytes(GIB)
    assert host.reading(0).active_bytes == GIB


def test_stranded_memory_is_wired_and_neither_free_nor_anybodys() -> None:
    host = simulated(16)
    host.set_stranded_bytes(6 * GIB)
    memory = host.reading(2 * GIB)
    assert (memory.free_bytes, memory.wired_bytes) == (8 * GIB, 8 * GIB)
    assert memory.active_bytes == 0


def test_the_gpu_limit_and_panics_can_be_declared_at_run_time() -> None:
    host = simulated(16)
    assert host.scan_panics() is None
    host.set_wired_limit_bytes(9 * GIB)
    host.set_panics(PanicScan(fault="unreadable"))
    assert host.reading(0).wired_limit_bytes == 9 * GIB
    assert host.scan_panics() == PanicScan(fault="unreadable")


def test_footprints_are_those_of_real_processes() -> None:
    footprint = simulated(16).process_footprint_bytes(os.getpid())
    assert footprint is not None
    assert footprint > 0


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (
            "\tlibopenblas.so (libc6,x86-64) => /b.so\n\tlibopenblas.so.0 (libc6) => /a.so.0\n",
            Path("/a.so.0"),
        ),
        ("\tlibopenblasp.so.0 (libc6) => /p.so\n", None),
        ("", None),
    ],
)
def test_openblas_is_found_by_its_own_name_only(text: str, path: Path | None) -> None:
    assert parse_ldconfig(text) == path


def test_a_library_that_is_found_exists() -> None:
    found = find_openblas()
    assert found is None or found.exists()
