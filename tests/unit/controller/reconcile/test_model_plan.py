from controller.reconcile.model_plan import EnginePlan, plan_engines
from manifests.kinds.engine import EnginePhase
from manifests.kinds.node import Taint
from tests.support.placing import SOURCE, engine, fleet, names, node, placed, request, wanted

LOADING = EnginePhase.LOADING
FAILED = EnginePhase.FAILED


def test_a_new_model_gets_its_copies_on_different_nodes() -> None:
    plan = plan_engines(wanted(2), (), fleet(node("a"), node("b")))
    assert [(item.name, item.node) for item in plan.creates] == [("m-r1-0", "a"), ("m-r1-1", "b")]
    assert plan.deletes == ()


def test_a_model_that_runs_as_declared_needs_nothing() -> None:
    one = engine("m-r1-0", "a")
    assert plan_engines(wanted(1), (one,), fleet(node("a"))) == EnginePlan()


def test_what_fits_is_placed_and_the_rest_is_explained() -> None:
    plan = plan_engines(wanted(3), (), fleet(node("a", 5), node("b", 5)))
    assert names(plan) == (["a", "b"], [])
    assert plan.refused is not None
    assert plan.refused.reason == "InsufficientMemory"
    assert plan.stuck


def test_the_name_of_a_copy_that_is_still_stopping_is_not_reused() -> None:
    leaving = engine("m-r1-0", "a", terminating=True)
    plan = plan_engines(wanted(1), (leaving,), fleet(node("a", 20)))
    assert [item.name for item in plan.creates] == ["m-r1-1"]


def test_scaling_down_stops_what_does_not_serve_first_then_on_the_fullest_node() -> None:
    views = (
        engine("m-r1-0", "a"),
        engine("m-r1-1", "b"),
        engine("m-r1-2", "c", phase=LOADING),
    )
    placements = tuple(placed(view, 4) for view in views)
    view = fleet(node("a", 20), node("b", 5), node("c", 20), engines=placements)
    assert names(plan_engines(wanted(2), views, view)) == ([], ["m-r1-2"])
    assert names(plan_engines(wanted(1), views, view)) == ([], ["m-r1-2", "m-r1-1"])


def test_scaling_down_keeps_the_copies_spread() -> None:
    views = tuple(engine(f"m-r1-{i}", on) for i, on in enumerate(("a", "a", "b", "b")))
    view = fleet(node("a", 20), node("b", 40), engines=tuple(placed(item, 4) for item in views))
    _, stopped = names(plan_engines(wanted(2), views, view))
    assert sorted(item.node for item in views if item.name not in stopped) == ["a", "b"]


def test_zero_replicas_stop_everything() -> None:
    views = (engine("m-r1-0", "a"), engine("m-r0-0", "gone", revision="r0"))
    assert names(plan_engines(wanted(0), views, fleet(node("a"))))[1] == ["m-r1-0", "m-r0-0"]


def test_an_update_surges_where_there_is_room_and_stops_the_old_copy_after() -> None:
    old = engine("m-r1-0", "a")
    roomy = fleet(node("a", 10), engines=(placed(old, 4),))
    step = plan_engines(wanted(1, "r2"), (old,), roomy)
    assert names(step) == (["a"], [])
    new = engine("m-r2-0", "a", "r2", phase=LOADING)
    assert plan_engines(wanted(1, "r2"), (old, new), roomy) == EnginePlan()
    ready = engine("m-r2-0", "a", "r2")
    assert names(plan_engines(wanted(1, "r2"), (old, ready), roomy)) == ([], ["m-r1-0"])


def test_an_update_on_a_full_node_stops_the_old_copy_first() -> None:
    """B71: the new copy must not wait for memory that the old one holds."""
    old = engine("m-r1-0", "a")
    full = fleet(node("a", 5), engines=(placed(old, 4),))
    step = plan_engines(wanted(1, "r2"), (old,), full)
    assert names(step) == ([], ["m-r1-0"])
    assert not step.stuck
    leaving = engine("m-r1-0", "a", terminating=True)
    wait = plan_engines(wanted(1, "r2"), (leaving,), full)
    assert names(wait) == ([], [])
    assert wait.waiting
    assert names(plan_engines(wanted(1, "r2"), (), fleet(node("a", 5)))) == (["a"], [])


def test_a_revert_in_the_middle_of_an_update_completes() -> None:
    """B71: the half-made new copy goes, the old revision comes back."""
    new = engine("m-r2-0", "a", "r2", phase=LOADING)
    full = fleet(node("a", 5), engines=(placed(new, 4),))
    assert names(plan_engines(wanted(1, "r1"), (new,), full)) == ([], ["m-r2-0"])


def test_a_new_revision_that_cannot_load_leaves_the_other_old_copies_serving() -> None:
    """B71: one copy makes room; the next stays until the successor serves."""
    old_b = engine("m-r1-1", "b")
    bad = engine("m-r2-0", "a", "r2", phase=FAILED)
    full = fleet(node("a", 5), node("b", 5), engines=(placed(old_b, 4), placed(bad, 4)))
    assert names(plan_engines(wanted(2, "r2"), (old_b, bad), full)) == ([], [])
    good = engine("m-r2-0", "a", "r2")
    assert names(plan_engines(wanted(2, "r2"), (old_b, good), full)) == ([], ["m-r1-1"])


def test_growing_and_updating_on_a_full_node_at_once_does_not_wait_for_ever() -> None:
    old = engine("m-r1-0", "a")
    full = fleet(node("a", 5), engines=(placed(old, 4),))
    assert names(plan_engines(wanted(2, "r2"), (old,), full)) == ([], ["m-r1-0"])


def test_a_larger_successor_takes_the_room_of_two_small_copies() -> None:
    olds = (engine("m-r1-0", "a"), engine("m-r1-1", "a"))
    view = fleet(node("a", 9), engines=tuple(placed(item, 4) for item in olds), weights={SOURCE: 7})
    assert names(plan_engines(wanted(2, "r2"), olds, view)) == ([], ["m-r1-0", "m-r1-1"])


def test_no_old_copy_is_stopped_for_a_successor_that_would_not_fit_anyway() -> None:
    old = engine("m-r1-0", "a")
    view = fleet(node("a", 5), engines=(placed(old, 4),), weights={SOURCE: 50})
    plan = plan_engines(wanted(1, "r2"), (old,), view)
    assert names(plan) == ([], [])
    assert plan.stuck


def test_recreate_stops_every_old_copy_before_it_makes_a_new_one() -> None:
    old = engine("m-r1-0", "a")
    roomy = fleet(node("a", 50), engines=(placed(old, 4),))
    step = plan_engines(wanted(1, "r2", recreate=True), (old,), roomy)
    assert names(step) == ([], ["m-r1-0"])
    leaving = engine("m-r1-0", "a", terminating=True)
    assert names(plan_engines(wanted(1, "r2", recreate=True), (leaving,), roomy)) == ([], [])
    released = engine("m-r1-0", "a", terminating=True, released=True)
    after = plan_engines(wanted(1, "r2", recreate=True), (released,), roomy)
    assert names(after) == (["a"], [])


def test_max_unavailable_lets_old_copies_go_early() -> None:
    olds = (engine("m-r1-0", "a"), engine("m-r1-1", "b"))
    roomy = fleet(node("a", 20), node("b", 20), engines=tuple(placed(item, 4) for item in olds))
    patient = plan_engines(wanted(2, "r2"), olds, roomy)
    eager = plan_engines(wanted(2, "r2", max_unavailable=1), olds, roomy)
    assert names(patient) == (["a", "b"], [])
    assert names(eager) == (["a", "b"], ["m-r1-0"])


def test_a_lost_copy_is_replaced_once_and_stopped_when_the_replacement_serves() -> None:
    """B66."""
    lost, other = engine("m-r1-0", "dead"), engine("m-r1-1", "a")
    dead = node("dead", ready=False, lost=True)
    view = fleet(dead, node("a"), node("b"), engines=(placed(other, 4),))
    assert names(plan_engines(wanted(2), (lost, other), view)) == (["b"], [])
    loading = engine("m-r1-2", "b", phase=LOADING)
    assert names(plan_engines(wanted(2), (lost, other, loading), view)) == ([], [])
    serving = engine("m-r1-2", "b")
    assert names(plan_engines(wanted(2), (lost, other, serving), view)) == ([], ["m-r1-0"])


def test_when_the_node_returns_first_the_surplus_copy_goes_instead() -> None:
    """B66: exactly as many as wanted run."""
    back, other = engine("m-r1-0", "dead"), engine("m-r1-1", "a")
    loading = engine("m-r1-2", "b", phase=LOADING)
    view = fleet(node("dead"), node("a"), node("b"))
    assert names(plan_engines(wanted(2), (back, other, loading), view)) == ([], ["m-r1-2"])


def test_work_pinned_to_a_lost_node_waits_and_is_not_moved() -> None:
    """B66."""
    pinned = engine("m-r1-0", "dead")
    dead = node("dead", ready=False, lost=True, why_not_ready="no lease", labels={"at": "desk"})
    want = wanted(1, request=request(node_selector={"at": "desk"}))
    plan = plan_engines(want, (pinned,), fleet(dead, node("a")))
    assert names(plan) == ([], [])
    assert plan.refused is not None
    assert plan.refused.reason == "NotReady"


def test_a_node_that_is_merely_overdue_keeps_its_copies() -> None:
    here = engine("m-r1-0", "late")
    view = fleet(node("late", ready=False), node("a"))
    assert plan_engines(wanted(1), (here,), view) == EnginePlan()


def test_a_changed_selector_moves_the_copy_without_a_gap() -> None:
    here = engine("m-r1-0", "a")
    view = fleet(node("a"), node("b", labels={"disk": "fast"}), engines=(placed(here, 4),))
    want = wanted(1, request=request(node_selector={"disk": "fast"}))
    assert names(plan_engines(want, (here,), view)) == (["b"], [])
    moved = engine("m-r1-1", "b")
    assert names(plan_engines(want, (here, moved), view)) == ([], ["m-r1-0"])


def test_a_noexecute_taint_drains_a_node_even_when_nothing_else_has_room() -> None:
    here = engine("m-r1-0", "a")
    drained = node("a", taints=(Taint(key="drain", effect="NoExecute"),))
    roomy = fleet(drained, node("b"), engines=(placed(here, 4),))
    assert names(plan_engines(wanted(1), (here,), roomy)) == (["b"], [])
    alone = fleet(drained, engines=(placed(here, 4),))
    assert names(plan_engines(wanted(1), (here,), alone)) == ([], ["m-r1-0"])


def test_a_cordoned_node_keeps_what_runs_on_it() -> None:
    here = engine("m-r1-0", "a")
    assert plan_engines(wanted(1), (here,), fleet(node("a", schedulable=False))) == EnginePlan()
