"""One engine under load, killed at a planned moment, and what it said until then."""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from node_agent.engine.messages import (
    CacheReport,
    CacheSettings,
    Event,
    Failed,
    Finished,
    Load,
    LoadFailed,
    Tokens,
)
from tests.crash.plan import CHUNK_TOKENS, SAID_TOKENS, Kill, Moment, Prompt
from tests.support.cached_engine import row
from tests.support.mlx_engine import BareEngine

_START_SECONDS = 2.0  # about what a start takes; kills at the start come within it
_ANYWHERE_SECONDS = 0.05
_IN_WRITE_SECONDS = 0.001
_WRITE_WAIT_SECONDS = 1.0
_POLL_SECONDS = 0.0002

Answers = dict[Prompt, list[int]]


@dataclass(slots=True)
class Seen:
    """What one engine did: wrong answers and failures in words, and its last counters."""

    faults: list[str] = field(default_factory=list)
    samples: int = 0
    answered: int = 0
    restored_tokens: int = 0
    quarantined: int = 0
    tier_faults: int = 0
    written: int = 0


class Victim:
    """An engine process with a cache on the shared directory."""

    def __init__(self, name: str, model: Path, cache: CacheSettings, answers: Answers) -> None:
        self.name, self.seen = name, Seen()
        self._blocks = Path(cache.directory) / "blocks"
        self._answers = answers
        self._asked: dict[str, Prompt] = {}
        self._said: dict[str, list[int]] = {}
        self._engine = BareEngine()
        self._engine.send(
            Load(
                model_path=str(model),
                model_fingerprint="model-a",
                cache=cache,
                chunk_tokens=CHUNK_TOKENS,
            )
        )

    def live(self, samples: list[Prompt], load: Iterator[Prompt], rows: int, kill: Kill) -> None:
        """Answer the samples, then serve the load until the kill."""
        try:
            if kill.moment is Moment.OPENING:
                time.sleep(_START_SECONDS * kill.fraction)  # the random moment itself
            else:
                self._start()
                self._sample(samples)
                self._serve(load, rows, kill)
        finally:
            self._end()

    def finish(self, samples: list[Prompt]) -> int:
        """Answer the samples and leave in good order; return the exit code."""
        self._start()
        self._sample(samples)
        return self._engine.stop()

    def _start(self) -> None:
        """Read up to the first report of a tier that is open."""
        for event in self._engine.events:
            assert not isinstance(event, LoadFailed), event
            self._note(event)
            if isinstance(event, CacheReport) and event.state_reason == "" and event.writable:
                return
        raise AssertionError(f"{self.name} left while starting")

    def _sample(self, prompts: list[Prompt]) -> None:
        for prompt in prompts:
            self._ask(prompt)
            self._read(lambda: not self._asked)
        self.seen.samples += len(prompts)

    def _serve(self, load: Iterator[Prompt], rows: int, kill: Kill) -> None:
        for _ in range(rows):
            self._ask(next(load))
        for count, event in enumerate(self._engine.events):
            self._note(event)
            if isinstance(event, Finished):
                self._ask(next(load))
            if count >= kill.events:
                break
        if kill.moment is Moment.ANYWHERE:
            time.sleep(_ANYWHERE_SECONDS * kill.fraction)
            return
        self._stop_in_write(kill.fraction)

    def _stop_in_write(self, fraction: float) -> None:
        """Stop the engine while a file is half written; it is killed as it stands."""
        deadline = time.monotonic() + _WRITE_WAIT_SECONDS
        while time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            if not self._is_writing():
                continue
            time.sleep(_IN_WRITE_SECONDS * fraction)
            self._engine.process.send_signal(signal.SIGSTOP)
            if self._is_writing():
                return
            self._engine.process.send_signal(signal.SIGCONT)

    def _is_writing(self) -> bool:
        with os.scandir(self._blocks) as entries:
            return any(entry.name.startswith("tmp-") for entry in entries)

    def _ask(self, prompt: Prompt) -> None:
        name = f"{self.name}-{len(self._said)}"
        self._asked[name], self._said[name] = prompt, []
        self._engine.send(row(name, list(prompt), SAID_TOKENS))

    def _read(self, done: Callable[[], bool]) -> None:
        for event in self._engine.events:
            self._note(event)
            if done():
                return
        raise AssertionError(f"{self.name} left without being killed")

    def _end(self) -> None:
        self._engine.process.kill()
        # What it had said before counts.
        for event in self._engine.events:
            self._note(event)
        self._engine.process.wait(10)
        self._engine.socket.close()

    def _note(self, event: Event) -> None:
        if isinstance(event, Tokens):
            self._said[event.request_id] += event.ids
        elif isinstance(event, Failed):
            self.seen.faults.append(f"{self.name}: a request failed: {event.code} {event.message}")
            del self._asked[event.request_id]
        elif isinstance(event, Finished):
            self._judge(event)
        elif isinstance(event, CacheReport):
            self.seen.quarantined = int(event.counters["corruptions"])
            self.seen.tier_faults = int(event.counters["faults"])
            self.seen.written = int(event.counters["saves_persisted"])

    def _judge(self, end: Finished) -> None:
        prompt, said = self._asked.pop(end.request_id), self._said[end.request_id]
        self.seen.answered += 1
        self.seen.restored_tokens += end.cached_tokens
        if said != self._answers[prompt]:
            what = f"{said} and not {self._answers[prompt]}, from {end.cached_tokens} stored tokens"
            self.seen.faults.append(f"{self.name}: wrong answer {what}")


def plan_load(source: random.Random, prompts: tuple[Prompt, ...]) -> Iterator[Prompt]:
    """Yield prompts for ever."""
    while True:
        yield source.choice(prompts)
