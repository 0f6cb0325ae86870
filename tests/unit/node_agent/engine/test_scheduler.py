"""The scheduler over a runner that is only counting."""

import pytest

from manifests.errors import Code, Retryable
from node_agent.engine.messages import (
    Abort,
    ChunkMeasured,
    Failed,
    Finished,
    Generate,
    Limits,
    PrefillProgress,
    Tokens,
)
from node_agent.engine.scheduling.lockstep import Prefilling
from node_agent.engine.scheduling.scheduler import Scheduler
from node_agent.engine.scheduling.waiting import MAX_PREFILLING_ROWS, Beside, can_admit, find_fault
from tests.support.counting_runner import CountingMemory, CountingRunner, row


def make(runner: CountingRunner | None = None, vocab_size: int = 1000) -> Scheduler:
    runner = runner or CountingRunner()
    # On a clock that stands nothing takes time, so no row is owed any.
    return Scheduler(runner, vocab_size, CountingMemory(runner), clock=lambda: 0.0)


def drain(scheduler: Scheduler) -> list:
    events = []
    while scheduler.busy:
        events += [e for e in scheduler.step() if not isinstance(e, ChunkMeasured)]
    return events


def counted(scheduler: Scheduler) -> tuple[int, int]:
    return scheduler.counts.running, scheduler.counts.waiting


def test_a_row_yields_progress_tokens_and_one_end():
    scheduler = make()
    assert scheduler.submit(row("a", prompt_tokens=10)) == []
    kinds = [type(event) for event in drain(scheduler)]
    assert kinds == [PrefillProgress] * 3 + [Tokens, Tokens, Finished]
    assert counted(scheduler) == (0, 0)


def test_the_token_that_stops_a_row_is_neither_sent_nor_counted():
    scheduler = make()
    scheduler.submit(row("a", max_tokens=3, stop_token_ids=[102]))
    events = drain(scheduler)
    assert [event.ids for event in events if isinstance(event, Tokens)] == [[100], [101]]
    assert events[-1] == Finished(
        request_id="a", reason="stop", prompt_tokens=3, completion_tokens=2
    )


def test_rows_beyond_the_limit_wait_outside_the_runner_in_order():
    runner = CountingRunner(max_rows=2)
    scheduler = make(runner)
    for name in "abcde":
        scheduler.submit(row(name))
    scheduler.step()
    assert (*counted(scheduler), len(runner.rows)) == (2, 3, 2)
    ends = [event.request_id for event in drain(scheduler) if isinstance(event, Finished)]
    assert ends == list("abcde")


def test_short_prompts_pass_a_long_one_and_long_ones_take_turns():
    runner = CountingRunner(max_rows=8)
    scheduler = make(runner)
    for name, tokens in (("long-1", 80), ("long-2", 80), ("short", 8)):
        scheduler.submit(row(name, tokens))
    scheduler.step()
    assert [command.request_id for command in runner.rows.values()] == ["long-1", "short"]
    ends = [event.request_id for event in drain(scheduler) if isinstance(event, Finished)]
    assert ends == ["short", "long-1", "long-2"]


@pytest.mark.parametrize(
    ("prompt", "prefilling", "admitted"),
    [
        (64, [], True),
        (100_000, [], True),
        (64, [100_000], True),
        (65, [100_000], False),
        (65, [64, 64], True),
        (1, [1] * MAX_PREFILLING_ROWS, False),
    ],
)
def test_admission_beside_what_is_being_fed(prompt, prefilling, admitted):
    others = [Prefilling(tokens) for tokens in prefilling]
    assert can_admit(Prefilling(prompt), Beside(others, 64)) is admitted


def test_cancel_ends_running_and_waiting_rows_and_ignores_strangers():
    runner = CountingRunner(max_rows=1)
    scheduler = make(runner)
    scheduler.submit(row("running", max_tokens=100))
    scheduler.submit(row("waiting"))
    scheduler.step()
    scheduler.step()
    (ended,) = scheduler.cancel("running")
    assert ended == Finished(
        request_id="running", reason="cancelled", prompt_tokens=3, completion_tokens=1
    )
    assert scheduler.cancel("waiting")[0].completion_tokens == 0
    assert scheduler.cancel("running") == []
    assert not scheduler.busy
    assert runner.rows == {}


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (row("a", prompt_tokens=0), "no tokens"),
        (row("a", max_tokens=0), "max_tokens must be at least 1, got 0"),
        (Generate(request_id="a", prompt=[5, 50], max_tokens=1), "token id 50 is outside"),
        (Generate(request_id="a", prompt=[-2, 5], max_tokens=1), "token id -2 is outside"),
    ],
)
def test_a_command_that_cannot_run_fails_alone(command, words):
    assert words in find_fault(command, vocab_size=50)
    scheduler = make(vocab_size=50)
    scheduler.submit(row("good"))
    (failed,) = scheduler.submit(command)
    assert (failed.code, failed.retryable) == (Code.INVALID_VALUE, Retryable.NO)
    assert isinstance(drain(scheduler)[-1], Finished)


def test_a_repeated_request_id_does_not_disturb_the_first():
    scheduler = make()
    scheduler.submit(row("a"))
    assert scheduler.submit(row("a")) == []
    scheduler.step()
    assert scheduler.submit(row("a")) == []
    ends = [event for event in drain(scheduler) if isinstance(event, Finished)]
    assert len(ends) == 1


def test_failing_all_answers_running_and_waiting_rows_once():
    scheduler = make(CountingRunner(max_rows=1))
    for name in "ab":
        scheduler.submit(row(name))
    scheduler.step()
    failed = scheduler.fail_all(Code.ENGINE_DIED, "gone", Retryable.ELSEWHERE)
    assert [(one.request_id, one.code) for one in failed if isinstance(one, Failed)] == [
        ("a", "engine_died"),
        ("b", "engine_died"),
    ]
    assert not scheduler.busy


def test_one_step_decodes_every_row_once_and_feeds_one_chunk_of_one_row():
    runner = CountingRunner(chunk_tokens=8)
    scheduler = make(runner)
    scheduler.submit(row("decoding", max_tokens=100))
    scheduler.step()
    scheduler.submit(row("long", 41))
    for fed in (8, 16, 24):
        events = scheduler.step()
        assert [e.request_id for e in events if isinstance(e, Tokens)] == ["decoding"]
        (step,) = [e for e in events if isinstance(e, PrefillProgress)]
        assert (step.request_id, step.done_tokens) == ("long", fed)


def test_what_a_short_prompt_leaves_of_the_chunk_goes_to_prompts_that_need_no_more():
    runner = CountingRunner(max_rows=8, chunk_tokens=8)
    scheduler = make(runner)
    for name, tokens in (("a", 4), ("long", 40), ("b", 3), ("c", 5)):
        scheduler.submit(row(name, tokens))
    scheduler.step()
    assert runner.chunks == [("a", 3), ("b", 2)]
    scheduler.step()
    # The long one stood first in line by now, and has the whole chunk.
    assert runner.chunks[2:] == [("long", 8)]
    scheduler.step()
    assert runner.chunks[3:] == [("c", 4)]


def test_without_the_turn_nothing_is_fed_and_decode_goes_on():
    runner = CountingRunner(chunk_tokens=8)
    scheduler = make(runner)
    scheduler.submit(row("decoding", max_tokens=5))
    scheduler.step()
    scheduler.submit(row("long", 41))
    scheduler.step()
    scheduler.steer(Limits(prefill_turn=False))
    scheduler.submit(row("late"))
    assert scheduler.counts.prefill_turn is False
    kinds = {type(e) for _ in range(4) for e in scheduler.step()}
    assert kinds == {Tokens, Finished}
    assert (counted(scheduler), scheduler.counts.prefilling) == ((1, 1), 1)
    assert scheduler.busy
    assert not scheduler.runnable
    scheduler.steer(Limits(prefill_turn=True))
    assert scheduler.runnable
    ends = [e.request_id for e in drain(scheduler) if isinstance(e, Finished)]
    assert sorted(ends) == ["late", "long"]


@pytest.mark.parametrize("victim", ["waiting", "prefilling", "running"])
def test_an_abort_ends_a_row_with_its_words_wherever_it_is(victim):
    runner = CountingRunner(max_rows=2)
    memory = CountingMemory(runner)
    scheduler = Scheduler(runner, 1000, memory)
    scheduler.submit(row("running", max_tokens=5))
    scheduler.step()
    scheduler.submit(row("prefilling", 80))
    scheduler.submit(row("waiting", 80))
    scheduler.step()
    clears = memory.clears
    command = Abort(request_id=victim, code="prefill_memory_exceeded", message="away with it")
    assert scheduler.abort(command) == [
        Failed(
            request_id=victim,
            code="prefill_memory_exceeded",
            message="away with it",
            retryable="elsewhere",
        )
    ]
    assert memory.clears > clears
    assert scheduler.abort(command) == []
    ends = [e.request_id for e in drain(scheduler) if isinstance(e, Finished)]
    assert sorted(ends) == sorted({"running", "prefilling", "waiting"} - {victim})
    assert runner.rows == {}
