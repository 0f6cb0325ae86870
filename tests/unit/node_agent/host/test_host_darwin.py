"""macOS facts, from recorded output and a libproc that fills its buffer as the kernel does."""

import errno
import struct
from pathlib import Path

import pytest

from node_agent.host.darwin import (
    DarwinHost,
    parse_platform_uuid,
    parse_vm_stat,
    parse_wired_limit_mb,
    read_phys_footprint,
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


def commands(**answers: str):
    def run(command: tuple[str, ...]) -> str:
        return answers.get(command[-1].replace(".", "_"), answers.get(Path(command[0]).name, ""))

    return run


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


@pytest.mark.parametrize(
    ("text", "limit"),
    [("114688", 112 << 30), ("0", None), ("", None), ("iogpu.wired_limit_mb: 12288", 12 << 30)],
)
def test_a_wired_limit_of_zero_means_the_systems_default(text: str, limit: int | None) -> None:
    assert parse_wired_limit_mb(text) == limit


def test_a_mac_is_read_through_its_commands() -> None:
    host = DarwinHost(
        FakeLibProc({7: 5}),
        commands(
            hw_memsize="51539607552\n",
            iogpu_wired_limit_mb="40960\n",
            kern_bootsessionuuid="B-1\n",
            machdep_cpu_brand_string="Apple M4 Max\n",
            IOPlatformExpertDevice='    "IOPlatformUUID" = "AB-12"\n',
            vm_stat=VM_STAT,
        ),
    )
    info, memory = host.info(), host.reading(0)
    assert (info.chip, info.boot_id, info.machine_id) == ("Apple M4 Max", "B-1", "AB-12")
    assert (info.ram_bytes, memory.ram_bytes) == (48 << 30, 48 << 30)
    assert memory.wired_limit_bytes == 40 << 30
    assert host.process_footprint_bytes(7) == 5


def test_a_mac_that_answers_nothing_is_a_fault_not_an_empty_machine() -> None:
    host = DarwinHost(FakeLibProc({}), commands(vm_stat=VM_STAT))
    with pytest.raises(OSError, match=r"hw\.memsize"):
        host.reading(0)


def test_no_platform_uuid_is_nothing() -> None:
    assert parse_platform_uuid("+-o Root") == ""
