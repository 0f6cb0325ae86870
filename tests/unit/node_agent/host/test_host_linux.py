"""Linux facts, read from recorded /proc and cgroup trees."""

import os
from pathlib import Path

import pytest

from node_agent.host.linux import LinuxHost, parse_cgroup_paths, parse_kib_table

MEMINFO = """MemTotal:       24684092 kB
MemFree:        10000000 kB
MemAvailable:   20000000 kB
Active:           120020 kB
Inactive:         487216 kB
HugePages_Total:       0
"""
ROLLUP = """560d0928b000-7ffe91e7b000 ---p 00000000 00:00 0                          [rollup]
Rss:                1760 kB
Pss:                 301 kB
Pss_Dirty:           112 kB
"""
SPLIT_ROLLUP = (
    ROLLUP
    + """Pss_Anon:            110 kB
Pss_File:            184 kB
Pss_Shmem:             7 kB
Swap:                 50 kB
SwapPss:              40 kB
"""
)
KIB = 1024


def make_tree(root: Path, files: dict[str, str]) -> LinuxHost:
    for name, text in {"proc/meminfo": MEMINFO, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return LinuxHost(root)


def test_meminfo_gives_total_free_and_what_can_be_taken_back(tmp_path: Path) -> None:
    memory = make_tree(tmp_path, {}).reading(0)
    assert memory.ram_bytes == 24684092 * KIB
    assert memory.free_bytes == 10000000 * KIB
    assert memory.inactive_bytes == 10000000 * KIB
    assert (memory.active_bytes, memory.wired_limit_bytes) == (0, None)


def test_a_v2_limit_on_a_group_above_ours_binds(tmp_path: Path) -> None:
    memory = make_tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/a.slice/b.scope\n",
            "sys/fs/cgroup/a.slice/memory.max": str(8 << 30),
            "sys/fs/cgroup/a.slice/memory.current": str(3 << 30),
            "sys/fs/cgroup/a.slice/memory.stat": f"anon 5\ninactive_file {1 << 30}\n",
            "sys/fs/cgroup/a.slice/b.scope/memory.max": "max\n",
            "sys/fs/cgroup/a.slice/b.scope/memory.current": "5\n",
        },
    ).reading(0)
    assert memory.ram_bytes == 8 << 30
    assert memory.free_bytes + memory.inactive_bytes == 6 << 30


def test_a_v1_limit_inside_a_container_is_found_at_the_mounts_root(tmp_path: Path) -> None:
    memory = make_tree(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/elsewhere/x\n1:cpu:/\n0::/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": str(4 << 30),
            "sys/fs/cgroup/memory/memory.usage_in_bytes": str(1 << 30),
            "sys/fs/cgroup/memory/memory.stat": "total_inactive_file 0\n",
        },
    ).reading(0)
    assert memory.ram_bytes == 4 << 30
    assert memory.free_bytes + memory.inactive_bytes == 3 << 30


def test_file_cache_charged_to_the_group_is_not_used_whether_recently_read_or_not(
    tmp_path: Path,
) -> None:
    """Recorded inside a container: a gigabyte in use is cache, a model's files among it."""
    stat = "cache 2286637056\nrss 459776000\ntotal_shmem 9068544\ninactive_file 4096\n"
    stat += "active_file 692224\ntotal_inactive_file 1554665472\ntotal_active_file 722903040\n"
    v1 = make_tree(
        tmp_path / "v1",
        {
            "proc/self/cgroup": "4:memory:/x\n0::/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": str(4 << 30),
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "2746318848",
            "sys/fs/cgroup/memory/memory.stat": stat,
        },
    ).reading(0)
    assert v1.free_bytes + v1.inactive_bytes == (4 << 30) - 468750336
    v2 = make_tree(
        tmp_path / "v2",
        {
            "proc/self/cgroup": "0::/x\n",
            "sys/fs/cgroup/x/memory.max": str(4 << 30),
            "sys/fs/cgroup/x/memory.current": "2746318848",
            "sys/fs/cgroup/x/memory.stat": "inactive_file 1554665472\nactive_file 722903040\n",
        },
    ).reading(0)
    assert v2.free_bytes + v2.inactive_bytes == (4 << 30) - 468750336


def test_the_tightest_of_nested_limits_binds(tmp_path: Path) -> None:
    memory = make_tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/memory.max": str(2 << 30),
            "sys/fs/cgroup/a/memory.current": str(1 << 30),
            "sys/fs/cgroup/a/b/memory.max": str(8 << 30),
            "sys/fs/cgroup/a/b/memory.current": str(1 << 20),
        },
    ).reading(0)
    assert memory.ram_bytes == 2 << 30
    assert memory.free_bytes + memory.inactive_bytes == 1 << 30


def test_linux_keeps_no_panic_reports(tmp_path: Path) -> None:
    assert make_tree(tmp_path, {}).scan_panics() is None


def test_an_unlimited_v1_group_changes_nothing(tmp_path: Path) -> None:
    memory = make_tree(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "5\n",
        },
    ).reading(0)
    assert memory.ram_bytes == 24684092 * KIB


def test_an_unreadable_meminfo_is_a_fault_not_an_empty_machine(tmp_path: Path) -> None:
    host = make_tree(tmp_path, {"proc/meminfo": "garbage"})
    with pytest.raises(OSError, match="MemTotal"):
        host.reading(0)


def test_a_footprint_is_what_has_no_file_behind_it_or_else_pss_or_rss(tmp_path: Path) -> None:
    """Library pages move between the processes that share them; they are nobody's to free."""
    host = make_tree(
        tmp_path,
        {
            "proc/4/smaps_rollup": SPLIT_ROLLUP,
            "proc/5/smaps_rollup": ROLLUP,
            "proc/6/status": "Name:\tx\nVmRSS:\t   77 kB\n",
        },
    )
    assert host.process_footprint_bytes(4) == (110 + 7 + 40) * KIB
    assert host.process_footprint_bytes(5) == 301 * KIB
    assert host.process_footprint_bytes(6) == 77 * KIB
    assert host.process_footprint_bytes(7) is None


def test_facts_of_the_machine_are_read_once_present(tmp_path: Path) -> None:
    info = make_tree(
        tmp_path,
        {
            "proc/sys/kernel/random/boot_id": "1bc8\n",
            "proc/cpuinfo": "processor : 0\nmodel name\t: AMD EPYC\n",
            "etc/machine-id": "abc\n",
        },
    ).info()
    assert (info.os, info.chip, info.boot_id, info.machine_id) == (
        "linux",
        "AMD EPYC",
        "1bc8",
        "abc",
    )


def test_cgroup_lines_of_both_versions_are_told_apart() -> None:
    assert parse_cgroup_paths("4:cpu,memory:/a:b\n0::/c\nbad\n") == ("/a:b", "/c")
    assert parse_cgroup_paths("") == (None, None)


def test_counts_without_a_unit_are_not_bytes() -> None:
    assert "HugePages_Total" not in parse_kib_table(MEMINFO)


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="reads this machine's /proc")
def test_this_machine_can_be_read() -> None:
    host = LinuxHost()
    memory = host.reading(0)
    assert 0 < memory.free_bytes + memory.inactive_bytes <= memory.ram_bytes
    footprint = host.process_footprint_bytes(os.getpid())
    assert footprint is not None
    assert footprint > 1 << 20
