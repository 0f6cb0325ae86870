"""What mlxctl prints, from values alone."""

import pytest

from controller.cli.client import exit_code_of
from controller.cli.describe import describe_lines, is_about
from controller.cli.describe_node import memory_bar
from controller.cli.exits import CliError, Exit
from controller.cli.output import align, table_lines
from controller.cli.plan_view import plan_lines
from controller.cli.processes import exit_words
from controller.cli.targets import parse_targets
from controller.cli.waiting import parse_goal
from manifests.kinds.node import CeilingName
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
    assert "12.0 GiB <- binding" in text
    assert "(x3 over" in text
    assert "zone=desk" in text


def test_a_node_shows_what_each_ceiling_and_level_means_the_guard_and_what_fits() -> None:
    obj = {
        "kind": "Node",
        "metadata": {"name": "a", "uid": "n1"},
        "status": {
            "capacityBytes": 16 * GIB,
            "usedBytes": 9 * GIB,
            "pressure": "soft",
            "waiting": 3,
            "ceilings": {
                "staticBytes": 12 * GIB,
                "dynamicBytes": 11 * GIB,
                "metalBytes": 10 * GIB,
                "hardBytes": 10 * GIB,
                "abortBytes": 10 * GIB,
                "binding": "metal",
            },
            "guard": {
                "name": "careful",
                "tier": "safe",
                "softBytes": 8 * GIB,
                "hardBytes": 9 * GIB,
                "emergencyBytes": 10 * GIB,
                "marginBytes": GIB,
                "prefillConcurrency": 1,
                "ceilingRatio": 0.81,
                "paused": True,
            },
        },
    }
    engine = {
        "metadata": {"name": "big-0"},
        "spec": {"model": "big", "node": "a"},
        "status": {"phase": "Ready", "tokensFitNow": 512, "tokensFitEver": 8192},
    }
    event = {
        "reason": "PrefillAborted",
        "involvedObject": {"kind": "Engine", "name": "big-0", "uid": "e1"},
        "source": {"host": "a"},
    }
    lines = describe_lines(obj, [event], [engine])
    text = "\n".join(lines)
    assert "Pressure:     soft: new requests wait" in text
    assert "3 waiting for memory, admission paused" in text
    assert "careful (tier safe), margin 1.00 GiB" in text
    assert "lowered to 81% after kernel panics" in text
    metal = next(line for line in lines if line.split()[:1] == ["metal"])
    assert "10.0 GiB <- binding" in metal
    assert "iogpu.wired_limit_mb" in metal
    assert any(line.split()[:3] == ["emergency", "10.0", "GiB"] for line in lines)
    assert any("512 tokens" in line and "8192 tokens" in line for line in lines)
    assert any("PrefillAborted" in line and "engine/big-0" in line for line in lines)
    assert "ceilings:" not in text


def test_a_nodes_news_are_those_about_it_and_those_its_agent_tells() -> None:
    own = {"involvedObject": {"uid": "n1"}, "source": {"component": "controller"}}
    engines = {"involvedObject": {"uid": "e1"}, "source": {"host": "a"}}
    assert is_about(own, "n1", "a")
    assert is_about(engines, "n1", "a")
    assert not is_about({"involvedObject": {"uid": "e2"}, "source": {"host": "b"}}, "n1", "a")


def test_the_end_of_a_process_is_told_in_words() -> None:
    assert exit_words(-9) == "was ended by SIGKILL"
    assert exit_words(1) == "exited with code 1"
