"""macOS facts, from recorded output and a libproc that fills its buffer as the kernel does."""

import errno
import struct
import sys
from pathlib import Path

import pytest

from node_agent.host.darwin import (
    DarwinHost,
    parse_platform_uuid,
    parse_swap_used,
    parse_sysctl,
    parse_vm_stat,
    parse_wired_limit_mb,
    read_phys_footprint,
    run_text,
)

VM_STAT = """Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                             1012345.
Pages active:                            905120.
Pages inactive:                          880455.
Pages speculative:                        21310.
Pages throttled:                              0.
Pages wired down:                       1180402.
"Translation faults":                 123456789.
Pages occupied by compressor:            120004.
Swapouts:                                     0.
"""
PAGE = 16384


class FakeLibProc:
    """Answers as the kernel: exactly the flavour's size, or an errno."""

    def __init__(self, footprints: dict[int, int], *, newest_flavor: int = 4) -> None:
        self.footprints, self.newest_flavor = footprints, newest_flavor
        self.denied: set[int] = set()
        self.calls: list[tuple[int, int]] = []

    def __call__(self, pid: int, flavor: int, buffer: bytearray) -> int:
        self.calls.append((flavor, len(buffer)))
        if flavor > self.newest_flavor:
            return errno.EINVAL
        if pid in self.denied:
            return errno.EPERM
        if pid not in self.footprints:
            return errno.ESRCH
        # Resident size stands at 64 and must not be taken for the footprint at 72.
        struct.pack_into("<QQ", buffer, 64, 193, self.footprints[pid])
        return 0


def test_the_footprint_is_read_and_never_the_resident_size() -> None:
    libproc = FakeLibProc({7: 110 << 30})
    assert read_phys_footprint(libproc, 7) == 110 << 30
    assert libproc.calls == [(4, 296)]


def test_an_older_system_is_asked_again_with_the_first_flavour() -> None:
    libproc = FakeLibProc({7: 5}, newest_flavor=0)
    assert read_phys_footprint(libproc, 7) == 5
    assert libproc.calls == [(4, 296), (0, 96)]


def test_a_process_that_is_gone_or_anothers_has_no_footprint() -> None:
    libproc = FakeLibProc({7: 5})
    libproc.denied = {8}
    assert read_phys_footprint(libproc, 9) is None
    assert read_phys_footprint(libproc, 8) is None
    assert len(libproc.calls) == 2


def test_vm_stat_is_read_with_the_page_size_of_its_header() -> None:
    stat = parse_vm_stat(VM_STAT)
    assert stat.free_bytes == (1012345 + 21310) * PAGE
    assert stat.active_bytes == 905120 * PAGE
    assert stat.inactive_bytes == 880455 * PAGE
    assert stat.wired_bytes == 1180402 * PAGE
    assert stat.compressor_bytes == 120004 * PAGE


@pytest.mark.parametrize("text", ["", "Pages free: 1.", "(page size of 4096 bytes)\n"])
def test_a_vm_stat_that_says_nothing_is_a_fault(text: str) -> None:
    with pytest.raises(ValueError, match="vm_stat"):
        parse_vm_stat(text)


SYSCTL = """hw.memsize: 51539607552
iogpu.wired_limit_mb: 40960
kern.memorystatus_level: 67
kern.memorystatus_vm_pressure_level: 2
vm.swapusage: total = 2048.00M  used = 973.25M  free = 1074.75M  (encrypted)
machdep.cpu.brand_string: Apple M4 Max
kern.bootsessionuuid: 6C1D0A11-0000-4000-8000-00000000ABCD
"""


@pytest.mark.parametrize(
    ("text", "limit"),
    [("114688", 112 << 30), ("0", None), ("", None), (None, None), ("none", None)],
)
def test_a_wired_limit_of_zero_means_the_systems_default(
    text: str | None, limit: int | None
) -> None:
    assert parse_wired_limit_mb(text) == limit


def test_sysctl_is_read_by_name_and_what_it_does_not_know_is_missing() -> None:
    facts = parse_sysctl("hw.memsize: 5\nvm.swapusage: used = 1.00M: odd\ngarbage\n")
    assert facts == {"hw.memsize": "5", "vm.swapusage": "used = 1.00M: odd"}


def test_swap_in_use_is_mebibytes_with_decimals() -> None:
    assert parse_swap_used("total = 2048.00M  used = 973.25M  free = 1074.75M") == 1020526592
    assert parse_swap_used("nothing") is None
    assert parse_swap_used(None) is None


def mac(
    sysctl: str = SYSCTL, vm_stat: str = VM_STAT, reports: Path = Path("/nowhere")
) -> DarwinHost:
    return DarwinHost(
        FakeLibProc({7: 5}),
        commands(
            sysctl=sysctl,
            IOPlatformExpertDevice='    "IOPlatformUUID" = "AB-12"\n',
            vm_stat=vm_stat,
        ),
        reports,
    )


def commands(**answers: str):
    def run(command: tuple[str, ...]) -> str:
        return answers.get(command[-1], answers.get(Path(command[0]).name, ""))

    return run


def test_a_mac_is_read_through_its_commands() -> None:
    host = mac()
    info, memory = host.info(), host.reading(0)
    assert (info.chip, info.machine_id) == ("Apple M4 Max", "AB-12")
    assert info.boot_id == "6C1D0A11-0000-4000-8000-00000000ABCD"
    assert (info.ram_bytes, memory.ram_bytes) == (48 << 30, 48 << 30)
    assert memory.wired_limit_bytes == 40 << 30
    assert host.process_footprint_bytes(7) == 5


def test_a_mac_tells_wired_compressed_and_swapped_memory_and_the_kernels_pressure() -> None:
    memory = mac().reading(0)
    assert memory.wired_bytes == 1180402 * PAGE
    assert memory.compressor_bytes == 120004 * PAGE
    assert memory.swap_used_bytes == 1020526592
    assert (memory.available_percent, memory.kernel_pressure) == (67, 2)


def test_an_older_mac_without_some_names_is_read_all_the_same() -> None:
    memory = mac(sysctl="hw.memsize: 17179869184\n").reading(0)
    assert memory.ram_bytes == 16 << 30
    assert (memory.wired_limit_bytes, memory.available_percent) == (None, None)
    assert (memory.kernel_pressure, memory.swap_used_bytes) == (None, None)


def test_a_mac_that_answers_nothing_is_a_fault_not_an_empty_machine() -> None:
    with pytest.raises(OSError, match=r"hw\.memsize"):
        mac(sysctl="").reading(0)
    with pytest.raises(OSError, match="vm_stat"):
        mac(vm_stat="").reading(0)


def test_a_macs_panic_reports_are_looked_for_where_it_keeps_them(tmp_path: Path) -> None:
    words = "panic(cpu 0 caller 0x1): Oops\nBoot session UUID: AB-1\n"
    (tmp_path / "Kernel-1.panic").write_text(words)
    scan = mac(reports=tmp_path).scan_panics()
    assert scan is not None
    assert [panic.boot_id for panic in scan.panics] == ["AB-1"]


def test_a_command_that_fails_still_tells_what_it_printed() -> None:
    assert run_text((sys.executable, "-c", "print('x: 1'); raise SystemExit(1)")) == "x: 1\n"
    assert run_text(("/nowhere/at/all",)) == ""


def test_no_platform_uuid_is_nothing() -> None:
    assert parse_platform_uuid("+-o Root") == ""
