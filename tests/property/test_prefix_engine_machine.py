"""Whatever is asked, cancelled, shrunk, damaged or restarted, answers are those of a cold engine.

The engine's own scheduler, runner and both tiers with real MLX, in this process. Requests are made
from those before them, so that they share beginnings.
"""

import itertools
import shutil
import tempfile
from functools import cache
from pathlib import Path

import mlx.core as mx
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from node_agent.engine.messages import Event, Finished, Generate
from tests.support.cached_engine import cached_tokens, ids, prompt, row
from tests.support.cached_engine import settings as cache_settings
from tests.support.local_engine import LocalEngine
from tests.support.tiny_models import tiny_model

BLOCK_TOKENS, CHUNK_TOKENS, SAID = 32, 32, 4
LONGEST = 200
# RAM and disk: nothing, one or two blocks, some prompts, all.
BUDGETS = st.sampled_from([0, 40 << 10, 400 << 10, 64 << 20])
SHARES = st.floats(0, 1)


@cache
def cold_engine(name: str) -> LocalEngine:
    """Return an engine without a cache, for the whole run."""
    return LocalEngine(tiny_model(name), chunk_tokens=CHUNK_TOKENS)


@cache
def cold(name: str, tokens: tuple[int, ...]) -> list[int]:
    """Return what a model says to a prompt when it knows no other."""
    return ids(cold_engine(name).run(row("cold", list(tokens), SAID))["cold"])


class PrefixMachine(RuleBasedStateMachine):
    """One engine with a cache, and what was said so far."""

    model = "llama"

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="prefix-machine-"))
        self.numbers = itertools.count()
        self.prompts: list[list[int]] = []
        self.turns: list[list[int]] = []
        self.damaged = False
        self.limits = {"hot_bytes": 64 << 20, "size_bytes": 64 << 20}
        self.engine = self.start()

    def start(self) -> LocalEngine:
        given = cache_settings(self.directory / "kv", block_tokens=BLOCK_TOKENS, **self.limits)
        engine = LocalEngine(tiny_model(self.model), given, chunk_tokens=CHUNK_TOKENS)
        engine.settle()
        return engine

    def teardown(self) -> None:
        report = self.engine.settle()
        assert report.counters["faults"] == 0
        assert self.damaged or report.counters["corruptions"] == 0
        self.engine.close()
        shutil.rmtree(self.directory)
        mx.clear_cache()

    def request(self, tokens: list[int]) -> Generate:
        return row(f"row-{next(self.numbers)}", tokens[:LONGEST], SAID)

    def check(self, command: Generate, events: list[Event]) -> None:
        """Compare with a cold run, as far as the row came."""
        tokens, said, end = command.prompt, ids(events), events[-1]
        assert isinstance(end, Finished), end
        expected = cold(self.model, tuple(tokens))
        if end.reason == "cancelled":
            expected = expected[: len(said)]
        assert said == expected
        assert end.prompt_tokens == len(tokens)
        assert 0 <= cached_tokens(events) < len(tokens)
        self.prompts.append(tokens)
        self.turns.append([*tokens, *said])

    def ask(self, *prompts: list[int]) -> None:
        """Run rows together."""
        commands = [self.request(tokens) for tokens in prompts]
        rows = self.engine.run(*commands)
        for command in commands:
            self.check(command, rows[command.request_id])

    def earlier(self, data: st.DataObject) -> list[int]:
        return data.draw(st.sampled_from(self.prompts))

    def draw_prompt(self, data: st.DataObject) -> list[int]:
        """Return a new prompt, an earlier one, longer, with another ending, or its next turn."""
        kind = data.draw(st.sampled_from(["new", "repeat", "longer", "other", "turn"]))
        own = prompt(data.draw(st.integers(1, 40)), seed=data.draw(st.integers(0, 3)))
        match kind:
            case "new":
                return prompt(data.draw(st.integers(1, 130)), seed=data.draw(st.integers(0, 3)))
            case "repeat":
                return self.earlier(data)
            case "longer":
                return [*self.earlier(data), *own]
            case "turn":
                return [*data.draw(st.sampled_from(self.turns)), *own]
        start = self.earlier(data)
        return [*start[: data.draw(st.integers(0, len(start)))], *own]

    @initialize(length=st.integers(30, 130))
    def begin(self, length: int) -> None:
        self.ask(prompt(length))

    @rule(data=st.data())
    def one(self, data: st.DataObject) -> None:
        self.ask(self.draw_prompt(data))

    @rule()
    def repeat(self) -> None:
        self.ask(self.prompts[-1])

    @rule(data=st.data(), count=st.integers(2, 4))
    def together(self, data: st.DataObject, count: int) -> None:
        self.ask(*(self.draw_prompt(data) for _ in range(count)))

    @rule(data=st.data(), steps=st.integers(0, 8), count=st.integers(1, 3))
    def cancelled(self, data: st.DataObject, steps: int, count: int) -> None:
        """The first is cancelled on the way; the others may wait for what it computes."""
        commands = [self.request(self.draw_prompt(data)) for _ in range(count)]
        rows: dict[str, list[Event]] = {command.request_id: [] for command in commands}
        engine = self.engine
        for command in commands:
            engine.note(rows, engine.scheduler.submit(command))
        for _ in range(steps):
            engine.note(rows, engine.scheduler.step())
        engine.note(rows, engine.scheduler.cancel(commands[0].request_id))
        engine.finish(rows)
        for command in commands:
            self.check(command, rows[command.request_id])

    @rule(limit=st.sampled_from(["hot_bytes", "size_bytes"]), size=BUDGETS)
    def resize(self, limit: str, size: int) -> None:
        self.limits[limit] = size
        self.engine.resize(**self.limits)
        report = self.engine.settle()
        assert report.hot_used_bytes <= self.limits["hot_bytes"]
        assert report.ssd_used_bytes <= self.limits["size_bytes"]

    @rule(data=st.data(), file=SHARES, position=SHARES)
    def damage(self, data: st.DataObject, file: float, position: float) -> None:
        """Change a byte of a block on the disk, and let a prompt start from there."""
        self.engine.settle()
        files = sorted((self.directory / "kv" / "blocks").glob("*.safetensors"))
        if files:
            path = files[min(int(file * len(files)), len(files) - 1)]
            content = bytearray(path.read_bytes())
            content[min(int(position * len(content)), len(content) - 1)] ^= 0xFF
            path.write_bytes(content)
            self.damaged = True
            self.forget_ram()
            self.ask(self.earlier(data))

    @rule()
    def forget_ram(self) -> None:
        """Leave only what the disk has."""
        self.engine.settle()
        self.engine.resize(**{**self.limits, "hot_bytes": 0})
        self.engine.resize(**self.limits)

    @rule()
    def restart(self) -> None:
        self.engine.close()
        self.engine = self.start()


# To make a failure small takes its time.
@pytest.mark.timeout(390)
@pytest.mark.parametrize("name", ["llama", "gemma3_text", "qwen3_next"])
def test_answers_are_the_same_warm_as_cold_whatever_happens(name: str) -> None:
    """B28, B29, B30, B37, B39: by token, by window, and recurrent between attention."""
    machine = type(name, (PrefixMachine,), {"model": name})
    steps = settings(
        max_examples=4,
        stateful_step_count=14,
        deadline=None,
        phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
        report_multiple_bugs=False,
    )
    run_state_machine_as_test(machine, settings=steps)
