"""The scheduler over a runner that is only counting."""

from dataclasses import dataclass, field

import pytest

from manifests.errors import Code, Retryable
from node_agent.engine.messages import Failed, Finished, Generate, PrefillProgress, Tokens
from node_agent.engine.rows import PrefillStep, StepResult, TokenStep
from node_agent.engine.scheduler import MAX_PREFILLING_ROWS, Scheduler, can_admit, find_fault


@dataclass
class CountingRunner:
    """Feeds a chunk a step, then gives token 100, 101, ... of each row."""

    max_rows: int = 4
    chunk_tokens: int = 8
    rows: dict[int, Generate] = field(default_factory=dict)
    fed: dict[int, int] = field(default_factory=dict)
    made: dict[int, int] = field(default_factory=dict)

    def insert(self, command: Generate) -> int:
        uid = len(self.made) + 10
        self.rows[uid], self.fed[uid], self.made[uid] = command, 0, 0
        return uid

    def remove(self, uid: int) -> None:
        del self.rows[uid]

    def step(self) -> StepResult:
        prefills, tokens = [], []
        for uid, command in list(self.rows.items()):
            total = len(command.prompt)
            if self.fed[uid] < total:
                chunk = min(self.chunk_tokens, total - self.fed[uid])
                self.fed[uid] += chunk
                prefills.append(PrefillStep(uid, self.fed[uid], total, chunk, 0.5))
                continue
            token = 100 + self.made[uid]
            self.made[uid] += 1
            finish = "length" if self.made[uid] >= command.max_tokens else None
            finish = "stop" if token in command.stop_token_ids else finish
            tokens.append(TokenStep(uid, token, finish))
            if finish:
                del self.rows[uid]
        return StepResult(tuple(prefills), tuple(tokens))


def row(name: str, prompt_tokens: int = 3, max_tokens: int = 2, **fields) -> Generate:
    return Generate(request_id=name, prompt=[1] * prompt_tokens, max_tokens=max_tokens, **fields)


def drain(scheduler: Scheduler) -> list:
    events = []
    while scheduler.busy:
        events += scheduler.step()
    return events


def test_a_row_yields_progress_tokens_and_one_end():
    scheduler = Scheduler(CountingRunner(), vocab_size=1000)
    assert scheduler.submit(row("a", prompt_tokens=10)) == []
    kinds = [type(event) for event in drain(scheduler)]
    assert kinds == [PrefillProgress, PrefillProgress, Tokens, Tokens, Finished]
    assert (scheduler.running, scheduler.waiting) == (0, 0)


def test_the_token_that_stops_a_row_is_neither_sent_nor_counted():
    scheduler = Scheduler(CountingRunner(), vocab_size=1000)
    scheduler.submit(row("a", max_tokens=3, stop_token_ids=[102]))
    events = drain(scheduler)
    assert [event.ids for event in events if isinstance(event, Tokens)] == [[100], [101]]
    assert events[-1] == Finished(
        request_id="a", reason="stop", prompt_tokens=3, completion_tokens=2
    )


def test_rows_beyond_the_limit_wait_outside_the_runner_in_order():
    runner = CountingRunner(max_rows=2)
    scheduler = Scheduler(runner, vocab_size=1000)
    for name in "abcde":
        scheduler.submit(row(name))
    scheduler.step()
    assert (scheduler.running, scheduler.waiting, len(runner.rows)) == (2, 3, 2)
    ends = [event.request_id for event in drain(scheduler) if isinstance(event, Finished)]
    assert ends == list("abcde")


def test_short_prompts_pass_a_long_one_and_long_ones_take_turns():
    runner = CountingRunner(max_rows=8)
    scheduler = Scheduler(runner, vocab_size=1000)
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
    assert can_admit(prompt, prefilling, chunk_tokens=64) is admitted


def test_cancel_ends_running_and_waiting_rows_and_ignores_strangers():
    runner = CountingRunner(max_rows=1)
    scheduler = Scheduler(runner, vocab_size=1000)
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
    scheduler = Scheduler(CountingRunner(), vocab_size=50)
    scheduler.submit(row("good"))
    (failed,) = scheduler.submit(command)
    assert (failed.code, failed.retryable) == (Code.INVALID_VALUE, Retryable.NO)
    assert isinstance(drain(scheduler)[-1], Finished)


def test_a_repeated_request_id_does_not_disturb_the_first():
    scheduler = Scheduler(CountingRunner(), vocab_size=1000)
    scheduler.submit(row("a"))
    assert scheduler.submit(row("a")) == []
    scheduler.step()
    assert scheduler.submit(row("a")) == []
    ends = [event for event in drain(scheduler) if isinstance(event, Finished)]
    assert len(ends) == 1


def test_failing_all_answers_running_and_waiting_rows_once():
    scheduler = Scheduler(CountingRunner(max_rows=1), vocab_size=1000)
    for name in "ab":
        scheduler.submit(row(name))
    scheduler.step()
    failed = scheduler.fail_all(Code.ENGINE_DIED, "gone", Retryable.ELSEWHERE)
    assert [(one.request_id, one.code) for one in failed if isinstance(one, Failed)] == [
        ("a", "engine_died"),
        ("b", "engine_died"),
    ]
    assert not scheduler.busy
