"""The memory guard against a kernel limit that kills: a short torture run of tiny real models.

`make torture` runs the long one, with SmolLM2 and models that come and go.
"""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from manifests.units import MIB
from tests.torture.cgroup import V1, CgroupUnavailableError, limited, parse_mounts
from tests.torture.checks import find_faults
from tests.torture.mix import TINY_CLASSES, Mix, Target
from tests.torture.report import render
from tests.torture.run import run
from tests.torture.stage import Plan

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

SMALL, MEDIUM, LARGE, HUGE, NEVER = TINY_CLASSES
GUARDED = Mix(
    (
        Target("dense", 0.6, (SMALL, replace(MEDIUM, weight=0.3), LARGE, NEVER)),
        Target("moe", 0.4, (SMALL, MEDIUM, LARGE)),
    ),
    leave_seconds=4.0,
    wave_clients=6,
)
UNGUARDED = Mix((Target("dense", 1.0, (SMALL, HUGE)),), leave_ratio=0.0, wave_clients=8)
PLAN = Plan(
    seconds=20.0,
    seed=7,
    clients=8,
    limit_bytes=1024 * MIB,
    reserve_bytes=320 * MIB,
    margin_bytes=64 * MIB,
    retries=3,
    mix=GUARDED,
)


@pytest.fixture(autouse=True)
def _a_cgroup_can_be_made() -> None:
    try:
        with limited(f"mlxfleet-try-{os.getpid()}", PLAN.limit_bytes):
            return
    except CgroupUnavailableError as fault:
        mounts = parse_mounts(Path("/proc/mounts").read_text()) if _linux() else []
        mounted = any(files is V1 and os.access(mount, os.W_OK) for mount, files in mounts)
        if os.environ.get("MLXFLEET_CI") == "1" and os.geteuid() == 0 and mounted:
            pytest.fail(f"root with a memory controller must be able to run this: {fault}")
        pytest.skip(str(fault))


def _linux() -> bool:
    return Path("/proc/mounts").exists()


def test_with_the_guard_nothing_is_killed_and_every_request_gets_its_due(tmp_path: Path) -> None:
    record = run(PLAN, tmp_path)
    faults = find_faults(record)
    assert not faults, render(record, faults) + "\n" + record.log


def test_without_the_guard_the_kernel_kills_an_engine(tmp_path: Path) -> None:
    plan = replace(PLAN, guard=False, mix=UNGUARDED, seconds=120.0)
    record = run(plan, tmp_path)
    assert record.seen.kills >= 1, render(record, find_faults(record)) + "\n" + record.log
