"""Who goes when a demand needs room."""

import pytest

from node_agent.memory.enforcer_plan import EngineNow
from node_agent.memory.room_plan import RoomPlan, plan_room


def idle(name: str, held: int, seconds: float, **more: object) -> EngineNow:
    fields: dict[str, object] = {"idle_seconds": seconds, "ready_seconds": 600.0, **more}
    return EngineNow(name, held, **fields)  # type: ignore[arg-type]


def test_nobody_goes_when_the_demand_fits() -> None:
    assert plan_room(10, 10, [idle("a", 50, 9)]) == RoomPlan()


def test_the_coldest_engine_that_alone_frees_enough_goes() -> None:
    engines = [idle("coldest", 10, 900), idle("cold", 60, 500), idle("warm", 70, 20)]
    assert plan_room(50, 0, engines).evict == ("cold",)


def test_without_such_an_engine_the_coldest_go_together() -> None:
    engines = [idle("a", 30, 900), idle("b", 30, 500), idle("c", 30, 20)]
    plan = plan_room(55, 0, engines)
    assert (plan.evict, plan.coming_bytes) == (("a", "b"), 60)


def test_nobody_goes_in_vain() -> None:
    plan = plan_room(100, 0, [idle("a", 30, 900), idle("b", 30, 500)])
    assert (plan.evict, plan.enough) == ((), False)


def test_what_is_leaving_already_is_waited_for() -> None:
    plan = plan_room(50, 10, [idle("a", 45, 9, leaving=True), idle("b", 60, 900)])
    assert (plan.evict, plan.coming_bytes, plan.enough) == ((), 45, True)


@pytest.mark.parametrize(
    "kept",
    [
        idle("x", 60, 9, pinned=True),
        idle("x", 60, 9, leases=1),
        idle("x", 60, 9, ready_seconds=1.0),
        idle("x", 60, 9, ready=False),
        idle("me", 60, 9),
    ],
)
def test_the_asking_engine_and_those_in_use_stay(kept: EngineNow) -> None:
    assert not plan_room(50, 0, [kept], keep="me").enough
