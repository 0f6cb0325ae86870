"""How long a request has been under way, as a gateway tells an agent."""

import pytest

from manifests.wire.elapsed import format_elapsed, parse_elapsed


@pytest.mark.parametrize("seconds", [0.0, 0.25, 59.999, 86_400.0])
def test_what_is_written_reads_back(seconds: float) -> None:
    assert parse_elapsed(format_elapsed(seconds)) == seconds


@pytest.mark.parametrize("text", [None, "", "soon", "nan", "inf", "-5", "1e999"])
def test_what_is_no_time_takes_nothing_off(text: str | None) -> None:
    assert parse_elapsed(text) == 0.0
