"""Engines killed with -9 while they serve leave nothing that is trusted and wrong.

`make crash` does the same two hundred times.
"""

from pathlib import Path

import pytest

from tests.crash.plan import Plan
from tests.crash.report import find_faults, render
from tests.crash.run import run

pytestmark = pytest.mark.processes


def test_no_block_is_wrong_after_kills_at_any_moment(tmp_path: Path) -> None:
    record = run(Plan(kills=6, seed=3, documents=1), tmp_path)
    assert find_faults(record) == [], render(record)
    assert record.answered >= record.samples >= 6
    assert record.written > 0
