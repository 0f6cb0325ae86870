"""The torture run's own judgement: what it lets pass and what it calls broken."""

import random
from dataclasses import replace
from typing import Any

import pytest

from tests.torture.aftermath import Aftermath, Doubt
from tests.torture.cgroup import V1, V2, parse_mounts, parse_own_path
from tests.torture.checks import find_faults
from tests.torture.churn import Turn
from tests.torture.mix import DEFAULT_MIX, Ask, build_body, draw_ask
from tests.torture.outcome import Answer, Kind, Outcome, judge_answer, judge_error
from tests.torture.report import render
from tests.torture.run import Record
from tests.torture.stage import Plan

ASK = Ask(
    client=0,
    number=0,
    model="dense",
    size="small",
    prompt_tokens=40,
    max_tokens=8,
    rows=1,
    stream=True,
    chat=False,
    direct=False,
    leave_after_seconds=None,
    seed=1,
)
REFUSED: dict[str, Any] = {
    "code": "prefill_memory_exceeded",
    "retryable": "later",
    "estimated_bytes": 2,
    "limit_bytes": 1,
    "binding": "static",
}


def refusal(status: int = 503, **changes: Any) -> Outcome:
    return Outcome(ASK, Kind.REFUSED, status, {**REFUSED, **changes})


def record(*outcomes: Outcome, guard: bool = True) -> Record:
    """A run in which every promise was held, and these outcomes besides."""
    kept = Record(Plan(seconds=10.0, guard=guard), seconds=10.0)
    kept.outcomes = [Outcome(ASK, Kind.ANSWERED, 200, first_token_seconds=0.1), refusal()]
    kept.outcomes += outcomes
    kept.turns = [Turn("visitor", "load", "held back (InsufficientMemory)", 60.0)]
    kept.aftermath = Aftermath(0, (), (), {})
    return kept


def test_a_refusal_with_its_figures_passes() -> None:
    assert judge_error(refusal(), comes_and_goes=False) == ""
    assert judge_error(refusal(413, retryable="no"), comes_and_goes=False) == ""


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (refusal(413), "came as 413"),
        (refusal(503, retryable="no"), "came as 503"),
        (refusal(limit_bytes=None), "lacks limit_bytes"),
        (refusal(binding=None), "lacks binding"),
        (refusal(retryable="perhaps"), "does not say"),
        (refusal(code="engine_died"), "no refusal"),
        (refusal(404, code="model_not_found"), "no refusal"),
    ],
)
def test_a_refusal_that_breaks_the_contract_is_named(outcome: Outcome, words: str) -> None:
    assert words in judge_error(outcome, comes_and_goes=False)


def test_a_model_that_comes_and_goes_may_be_absent() -> None:
    absent = refusal(404, code="model_not_found")
    assert judge_error(absent, comes_and_goes=True) == ""


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer(("length",), 40, 8), ""),
        (Answer(("length",), 40, 8, done=False), "[DONE]"),
        (Answer(("length",), 40, 7), "7 of 1 x 8"),
        (Answer((None,), 40, 8), "finished as"),
        (Answer((), 40, 8), "finished as"),
        (Answer(("length",), 39, 8), "39 counted"),
    ],
)
def test_an_answer_is_whole_or_says_what_it_lacks(answer: Answer, words: str) -> None:
    said = judge_answer(ASK, answer)
    assert words in said
    assert bool(said) is bool(words)


def test_a_run_that_held_every_promise_has_no_fault() -> None:
    assert find_faults(record()) == []
    assert "every promise held" in render(record(), [])


def test_every_broken_promise_is_a_fault() -> None:
    broken = record(Outcome(ASK, Kind.BROKEN, detail="cut"), refusal(limit_bytes=None))
    broken.seen.kills = 1
    broken.seen.restarts = {"dense-0": 2}
    broken.seen.failures = {("dense-0", "EngineDied: signal 9"), ("v", "InsufficientMemory: x")}
    broken.turns.append(Turn("moe", "unload", "stuck", 120.0))
    broken.turns.append(Turn("moe", "load", "held back (Loading)", 60.0, idle=True))
    again = Outcome(ASK, Kind.REFUSED, 503, REFUSED)
    doubt = Doubt(refusal(413, retryable="no"), need_bytes=5, least_bytes=2, room_bytes=9)
    broken.aftermath = Aftermath(7, (doubt,), ((refusal(), again),), {})
    faults = "\n".join(find_faults(broken))
    for words in (
        "killed 1 processes",
        "dense-0 was restarted 2 times",
        "dense-0 failed: EngineDied",
        "broken answer",
        "bad refusal",
        "unload of moe ended as stuck",
        "although no client asked",
        "7 bytes stay promised",
        "false refusal",
        "alone again",
    ):
        assert words in faults
    assert "v failed" not in faults
    assert "FAILED, 10 faults" in render(broken, find_faults(broken))


def test_a_run_that_was_too_easy_proves_nothing() -> None:
    easy = record()
    easy.outcomes = easy.outcomes[:1]
    assert "raise the load" in "\n".join(find_faults(easy))
    easy.outcomes = []
    assert "only 0 answers" in "\n".join(find_faults(easy))


def test_without_the_guard_only_a_kill_counts() -> None:
    unguarded = record(Outcome(ASK, Kind.BROKEN, detail="cut"), guard=False)
    assert "proves nothing" in "\n".join(find_faults(unguarded))
    unguarded.seen.kills = 1
    assert find_faults(unguarded) == []


def test_the_same_seed_draws_the_same_requests() -> None:
    def draw(seed: int) -> list[Ask]:
        rng = random.Random(seed)
        return [draw_ask(DEFAULT_MIX, rng, client, 0) for client in range(40)]

    assert draw(3) == draw(3)
    assert draw(3) != draw(4)


def test_the_body_has_as_many_tokens_as_the_request_says() -> None:
    assert len(build_body(ASK)["prompt"]) == 40
    assert [len(row) for row in build_body(replace(ASK, rows=3))["prompt"]] == [40] * 3


def test_the_memory_controller_of_both_versions_is_found() -> None:
    mounts = (
        "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n"
        "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n"
        "cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n"
    )
    found = [(str(path), files) for path, files in parse_mounts(mounts)]
    assert found == [("/sys/fs/cgroup/memory", V1), ("/sys/fs/cgroup/unified", V2)]
    own = "4:memory:/jobs/a\n3:cpuset:/\n0::/user.slice\n"
    assert parse_own_path(own, V1) == "jobs/a"
    assert parse_own_path(own, V2) == "user.slice"
