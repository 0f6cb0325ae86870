"""When an attempt leaves its node, from values alone."""

import pytest

from controller.gateway.moving import Surroundings, plan_leave
from controller.gateway.settings import GatewaySettings

SETTINGS = GatewaySettings(move_after_seconds=5.0, silence_seconds=3.0, dead_seconds=15.0)


def leaves(silent: float, node: float, *, begun: bool = False, elsewhere: bool = True) -> bool:
    around = Surroundings(
        has_data=lambda: begun, node_silent=lambda: node, has_elsewhere=lambda: elsewhere
    )
    return plan_leave(SETTINGS, around)(silent)


@pytest.mark.parametrize("begun", [False, True])
def test_a_node_is_left_once_it_and_its_answer_are_silent(begun: bool) -> None:
    assert leaves(5.0, 5.0, begun=begun)
    assert not leaves(4.9, 100.0, begun=begun)
    assert not leaves(100.0, 4.9, begun=begun)


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_node_that_reports_is_never_left_however_long_its_prompt_takes(
    begun: bool, elsewhere: bool
) -> None:
    """B59."""
    assert not leaves(100_000.0, 1.0, begun=begun, elsewhere=elsewhere)


def test_an_answer_that_has_not_begun_stays_longer_where_there_is_nobody_else() -> None:
    assert not leaves(17.9, 17.9, elsewhere=False)
    assert leaves(18.0, 18.0, elsewhere=False)
    assert leaves(5.0, 5.0, begun=True, elsewhere=False)
