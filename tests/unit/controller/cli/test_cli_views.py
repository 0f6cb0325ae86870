"""What mlxctl prints, from values alone."""

import pytest

from controller.cli.client import exit_code_of
from controller.cli.describe import describe_lines, memory_bar
from controller.cli.exits import CliError, Exit
from controller.cli.output import align, table_lines
from controller.cli.plan_view import plan_lines
from controller.cli.processes import exit_words
from controller.cli.targets import parse_targets
from controller.cli.waiting import parse_goal
from manifests.node import CeilingName
from manifests.units import GIB
from manifests.wire.plan import Candidate, ModelPlan, PlanReport
from manifests.wire.status import ApiError


def test_kinds_are_found_by_plural_singular_short_and_proper_name() -> None:
    for word in ("models", "model", "mdl", "Model", "MODELS"):
        assert parse_targets([word])[0].kind.name == "Model"


def test_several_kinds_and_slashes_are_understood() -> None:
    assert [t.kind.plural for t in parse_targets(["nodes,models"])] == ["nodes", "models"]
    assert [(t.kind.plural, t.name) for t in parse_targets(["model/a", "node/b"])] == [
        ("models", "a"),
        ("nodes", "b"),
    ]
    assert [t.name for t in parse_targets(["engine", "a", "b"])] == ["a", "b"]


def test_a_mistyped_kind_names_the_nearest() -> None:
    with pytest.raises(CliError) as caught:
        parse_targets(["modles"])
    assert caught.value.code is Exit.USAGE
    assert "models" in caught.value.hint


def test_columns_line_up_and_wide_columns_show_only_when_asked() -> None:
    table = {
        "columnDefinitions": [{"name": "Name"}, {"name": "Pid", "priority": 1}, {"name": "Age"}],
        "rows": [{"cells": ["a", 12, "5m"]}, {"cells": ["longer", None, "1s"]}],
    }
    assert table_lines(table, wide=False) == ["NAME     AGE", "a        5m", "longer   1s"]
    assert table_lines(table, wide=True)[0] == "NAME     PID   AGE"
    assert align(["A"], []) == ["A"]


def test_each_refusal_of_the_api_has_its_exit_code() -> None:
    codes = {404: Exit.NOT_FOUND, 409: Exit.CONFLICT, 403: Exit.REFUSED, 422: Exit.FAILED}
    assert {code: exit_code_of(ApiError(code, "x")) for code in codes} == codes


def test_a_goal_waits_for_the_newest_generation() -> None:
    goal = parse_goal("condition=Ready")
    obj = {
        "metadata": {"generation": 2},
        "status": {"observedGeneration": 1, "conditions": [{"type": "Ready", "status": "True"}]},
    }
    assert not goal.holds(obj)
    obj["status"]["observedGeneration"] = 2  # type: ignore[call-overload,index]
    assert goal.holds(obj)
    assert parse_goal("delete").holds(None)
    assert not parse_goal("create").holds(None)
    assert parse_goal("condition=Ready=false").status == "False"


def test_an_unknown_goal_is_a_usage_error() -> None:
    with pytest.raises(CliError) as caught:
        parse_goal("ready")
    assert caught.value.code is Exit.USAGE


def test_the_plan_says_who_takes_it_and_why_others_do_not() -> None:
    report = PlanReport(
        models=(
            ModelPlan(
                model="big",
                source="/m",
                replicas=2,
                placed=1,
                nodes=("a",),
                candidates=(
                    Candidate(
                        node="b",
                        fits=False,
                        reason="InsufficientMemory",
                        message="short by 2.0 GiB",
                        needed_bytes=6 * GIB,
                        available_bytes=4 * GIB,
                        ceiling_bytes=8 * GIB,
                        binding=CeilingName.METAL,
                    ),
                    Candidate(node="a", fits=True, chosen=True, needed_bytes=6 * GIB),
                ),
            ),
        )
    )
    lines = plan_lines(report)
    assert lines[0] == "!!  model/big: 1 of 2 copies placed on a"
    assert lines[2].split()[:3] == ["a", "takes", "it"]
    assert "no: InsufficientMemory" in lines[3]
    assert lines[-1].strip() == "b: short by 2.0 GiB"


def test_the_memory_bar_shows_used_reserved_and_free() -> None:
    bar = memory_bar(used=10, reserved=10, ceiling=30, capacity=40)
    assert bar == "[" + "#" * 10 + "+" * 10 + "." * 10 + " " * 10 + "]"
    assert memory_bar(0, 0, 0, 0) == ""


def test_describe_shows_conditions_and_events_but_not_bookkeeping() -> None:
    obj = {
        "kind": "Node",
        "metadata": {
            "name": "a",
            "labels": {"zone": "desk"},
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"},
        },
        "spec": {"unschedulable": False},
        "status": {
            "capacityBytes": 16 * GIB,
            "usedBytes": GIB,
            "ceilings": {"staticBytes": 12 * GIB, "hardBytes": 12 * GIB, "binding": "static"},
            "conditions": [{"type": "Ready", "status": "True", "reason": "AgentReady"}],
        },
    }
    event = {"type": "Warning", "reason": "Crashed", "message": "killed", "count": 3}
    text = "\n".join(describe_lines(obj, [event]))
    assert "last-applied" not in text
    assert "static 12.0 GiB <- binding" in text
    assert "(x3 over" in text
    assert "zone=desk" in text


def test_the_end_of_a_process_is_told_in_words() -> None:
    assert exit_words(-9) == "was ended by SIGKILL"
    assert exit_words(1) == "exited with code 1"
