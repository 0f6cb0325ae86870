"""What nodes' noes mean together: who is asked next, and what the client is told (B43)."""

from collections.abc import Sequence
from typing import Any

from controller.gateway.nodes.endpoints import EndpointKey, EndpointView
from controller.gateway.sending.attempts import Refused, lost
from controller.gateway.sending.refusals import No, choose_answer, plan_candidates
from manifests.errors import Code, Refusal, Retryable
from manifests.kinds.engine import EnginePhase
from manifests.kinds.node import PressureLevel
from manifests.units import GIB


def endpoint(node: str, *, tokens: int = 0, gib: int = 0, **changes: Any) -> EndpointView:
    figures: dict[str, Any] = {
        "key": EndpointKey(node, f"m-{node}"),
        "address": f"http://{node}",
        "model": "m",
        "aliases": (),
        "phase": EnginePhase.READY,
        "accepting": True,
        "running": 0,
        "waiting": 0,
        "max_running": 4,
        "max_waiting": 4,
        "context_tokens": 1000,
        "tokens_fit_now": 1000,
        "prefill_tokens_per_second": 100.0,
        "decode_tokens_per_second": 10.0,
        "pressure": PressureLevel.OK,
        "reported_seconds": 10.0,
        "tokens_fit_ever": tokens,
        "ceiling_bytes": gib * GIB,
    }
    return EndpointView(**{**figures, **changes})


SMALL = endpoint("small", tokens=1000, gib=8)
TWIN = endpoint("twin", tokens=1000, gib=8)
LARGE = endpoint("large", tokens=4000, gib=64)
UNKNOWN = endpoint("unknown")


def no(
    where: EndpointView,
    retryable: Retryable = Retryable.NO,
    code: Code = Code.PREFILL_MEMORY_EXCEEDED,
    status: int | None = None,
    **fields: Any,
) -> No:
    refusal = Refusal(code, f"{where.key.node} says no.", retryable, **fields)
    return No(where, Refused(status or refusal.http_status, (), b"{}", refusal))


def names(endpoints: Sequence[EndpointView]) -> list[str]:
    return [item.key.node for item in endpoints]


def test_before_any_no_everyone_is_asked() -> None:
    assert names(plan_candidates([SMALL, LARGE], [])) == ["small", "large"]


def test_after_never_here_the_surely_roomier_are_asked_first() -> None:
    assert names(plan_candidates([SMALL, TWIN, LARGE, UNKNOWN], [no(SMALL)])) == ["large"]


def test_without_a_roomier_one_equals_are_asked_and_smaller_ones_are_not() -> None:
    tiny = endpoint("tiny", tokens=10, gib=4)
    closed = endpoint("closed", tokens=9000, gib=64, accepting=False)
    left = plan_candidates([SMALL, TWIN, tiny, UNKNOWN, closed], [no(SMALL)])
    assert names(left) == ["twin", "unknown", "closed"]


def test_a_node_whose_whole_ceiling_is_less_than_the_need_is_not_asked() -> None:
    # Its tokens_fit_ever is no help: more rows or more output can need more than one context.
    middle = endpoint("middle", tokens=1000, gib=16)
    left = plan_candidates([SMALL, middle, LARGE], [no(SMALL, estimated_bytes=20 * GIB)])
    assert names(left) == ["large"]


def test_a_no_that_is_only_about_now_excludes_nobody() -> None:
    for retryable in (Retryable.LATER, Retryable.ELSEWHERE):
        assert names(plan_candidates([SMALL, TWIN], [no(SMALL, retryable)])) == ["twin"]


def test_when_waiting_helps_somewhere_the_shortest_wait_is_the_answer() -> None:
    soon = no(TWIN, Retryable.LATER, retry_after_seconds=2)
    late = no(LARGE, Retryable.LATER, retry_after_seconds=9)
    busy = no(UNKNOWN, Retryable.LATER, Code.QUEUE_FULL, retry_after_seconds=30)
    answer = choose_answer([no(SMALL), late, soon, busy], [SMALL, TWIN, LARGE, UNKNOWN])
    assert answer is soon.ending


def test_when_none_can_ever_hold_it_the_nearest_node_speaks() -> None:
    noes = [
        no(SMALL, limit_bytes=4 * GIB, binding="static", hint=""),
        no(LARGE, limit_bytes=60 * GIB, binding="metal", estimated_bytes=70 * GIB),
        no(TWIN, limit_bytes=4 * GIB, binding="static"),
    ]
    answer = choose_answer(noes, [SMALL, TWIN, LARGE])
    assert isinstance(answer, Refused)
    refusal = answer.refusal
    assert (answer.status, answer.body) == (413, None)
    assert (refusal.retryable, refusal.node, refusal.binding) == (Retryable.NO, "large", "metal")
    assert (refusal.limit_bytes, refusal.estimated_bytes) == (60 * GIB, 70 * GIB)
    assert refusal.message == (
        "No node can take this request. The nearest is large: large says no."
    )


def test_a_node_that_could_hold_it_without_other_apps_is_nearer_and_the_client_may_wait() -> None:
    crowded = no(TWIN, Retryable.ELSEWHERE, limit_bytes=GIB, binding="dynamic")
    answer = choose_answer([no(SMALL, limit_bytes=4 * GIB), crowded], [SMALL, TWIN])
    assert isinstance(answer, Refused)
    assert (answer.status, answer.refusal.node) == (503, "twin")
    assert answer.refusal.binding == "dynamic"
    assert answer.refusal.retry_after_seconds == 30


def test_never_is_not_said_while_a_large_enough_node_starts_or_is_lost() -> None:
    starting = endpoint("big", gib=64, accepting=False, phase=EnginePhase.LOADING)
    for noes, candidates in (
        ([no(SMALL)], [SMALL, starting]),
        ([no(SMALL), No(LARGE, lost("cut"))], [SMALL, LARGE]),
    ):
        answer = choose_answer(noes, candidates)
        assert isinstance(answer, Refused)
        assert answer.status == 503
        assert answer.refusal.retry_after_seconds == 5
        assert candidates[1].key.node in answer.refusal.message


def test_never_is_said_when_only_too_small_or_dead_nodes_are_left() -> None:
    small = endpoint("later", tokens=10, gib=4)
    failed = endpoint("failed", gib=64, accepting=False, phase=EnginePhase.FAILED)
    answer = choose_answer([no(SMALL)], [SMALL, small, failed])
    assert isinstance(answer, Refused)
    assert answer.status == 413


def test_other_reasons_come_before_memory_and_a_reasoned_no_before_a_lost_link() -> None:
    too_long = no(LARGE, Retryable.NO, Code.CONTEXT_LENGTH_EXCEEDED)
    unloaded = no(TWIN, Retryable.NO, Code.MODEL_NOT_FOUND)
    gone = No(UNKNOWN, lost("cut"))
    died = no(TWIN, Retryable.LATER, Code.ENGINE_DIED)
    assert choose_answer([no(SMALL), too_long, gone], [LARGE]) is too_long.ending
    assert choose_answer([died, gone], []) is gone.ending
    assert choose_answer([gone, died], []) is died.ending
    told = choose_answer([no(SMALL), unloaded], [SMALL])
    assert told.refusal.code is Code.PREFILL_MEMORY_EXCEEDED
