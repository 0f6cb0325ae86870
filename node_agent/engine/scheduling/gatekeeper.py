"""The gate's memory: the budget, what was held lately, how wrong predictions were, what was tried.

Owns the reading of memory and the one reclaim per chunk; the decisions are `forward_gate`'s and
the arithmetic `forecast`'s. It holds no array and imports no MLX. Called by the feeding line.
"""

from collections.abc import Callable
from dataclasses import dataclass

from manifests.errors import Retryable
from node_agent.engine.messages import Answer, Limits
from node_agent.engine.rows import DraftPass, JoinCost, Memory
from node_agent.engine.scheduling.forecast import Correction, Forecast
from node_agent.engine.scheduling.forward_gate import (
    Ask,
    Attempts,
    Decision,
    GateReading,
    HighWater,
    NextChunk,
    Reclaim,
    Refuse,
    Requeue,
    Run,
    Wait,
    decide,
)

# An agent that never answers must not hold a request for ever.
ANSWER_SECONDS = 60.0

# Freed buffers are given back this often while rows only decode, as mlx-lm's generator does,
# and this often at most while decode has grown past the budget.
CLEAR_EVERY_STEPS = 512
CLEAR_OVER_BUDGET_EVERY_STEPS = 8


@dataclass(frozen=True, slots=True)
class Chunks:
    """A chunk of `tokens` for each of `rows` rows that hold as much, in one forward pass.

    `total_tokens` are in the shortest prompt. `moved_bytes` exist twice while the rows' caches are
    put together or apart.
    """

    held_tokens: int
    tokens: int
    total_tokens: int
    rows: int = 1
    moved_bytes: int = 0


Decide = Callable[[GateReading, NextChunk, Attempts], Decision]


@dataclass(slots=True)
class Tries:
    """What was tried for one request. Only its feeding line changes it."""

    requeues: int = 0
    reclaimed: bool = False
    asks: int = 0
    unanswered: int = 0
    asked_at_seconds: float | None = None
    asked_with_room_bytes: int = 0
    final: bool = False
    retryable: str = Retryable.ELSEWHERE.value
    advice: str = ""

    @property
    def held(self) -> bool:
        """Whether the request waits for an answer."""
        return self.asked_at_seconds is not None

    def hear(self, answer: Answer) -> None:
        """Note an answer; one to an older Ask than the last changes nothing."""
        self.unanswered = max(0, self.unanswered - 1)
        if self.unanswered or not self.held:
            return
        self.asked_at_seconds = None
        self.reclaimed = False
        if not answer.granted:
            self.final = answer.retryable == Retryable.NO
            self.retryable = answer.retryable
            self.advice = answer.message


class Reserved:
    """Room kept for rows that were allowed more than they have taken yet."""

    def __init__(self) -> None:
        self._by_uid: dict[int, int] = {}

    @property
    def total_bytes(self) -> int:
        """Return what is kept for all rows together."""
        return sum(self._by_uid.values())

    def keep(self, uid: int, size_bytes: int) -> None:
        """Keep so much for a row from now on; 0 gives it back."""
        self._by_uid.pop(uid, None)
        if size_bytes:
            self._by_uid[uid] = size_bytes


class Gatekeeper:
    """Asks the gate, and acts on its wish to reclaim."""

    def __init__(
        self,
        memory: Memory,
        forecast: Forecast | None,
        clock: Callable[[], float],
        decide: Decide = decide,
    ) -> None:
        self._memory, self._forecast = memory, forecast
        self._clock, self._decide = clock, decide
        self._high_water = HighWater()
        self._correction = Correction()
        self._steps_since_clear = 0
        self.over_budget_bytes = 0
        self.limits = Limits()
        self.reserved = Reserved()

    @property
    def correction(self) -> Correction:
        """What measured chunks have taught so far."""
        return self._correction

    def watch(self) -> None:
        """Note what is held at a step's start, and how far decode has grown past the budget.

        Mutates: MLX's cache, now and then, and sooner when over the budget. No row is ended.
        """
        self._steps_since_clear += 1
        self.over_budget_bytes = self._note_held()
        every_steps = CLEAR_OVER_BUDGET_EVERY_STEPS if self.over_budget_bytes else CLEAR_EVERY_STEPS
        if self._steps_since_clear >= every_steps:
            self._steps_since_clear = 0
            self.reclaim()
            self.over_budget_bytes = self._note_held()

    def reclaim(self, given_bytes: int = 0) -> None:
        """Give freed buffers back to the system; so much that was active is among them.

        Mutates: MLX's cache.
        """
        self._memory.clear()
        self._high_water.forget_cache(given_bytes)

    def rest(self) -> None:
        """Nothing runs any more: give freed buffers back and start readings afresh.

        Mutates: MLX's cache.
        """
        self._memory.clear()
        self._high_water.forget()
        self.over_budget_bytes = 0

    def judge_chunk(
        self, tries: Tries, *, held_tokens: int, total_tokens: int, wanted_tokens: int, alone: bool
    ) -> Decision:
        """Return what to do about a row's next chunk."""
        forecast, correction = self._forecast, self._correction
        if forecast is None:
            return Run()
        chunk = NextChunk(
            wanted_tokens,
            lambda tokens: (
                correction.apply(forecast.chunk_bytes(held_tokens, tokens))
                + forecast.logits_bytes(held_tokens, tokens, total_tokens)
            ),
            lambda tokens: correction.apply(
                forecast.finish_bytes(held_tokens, total_tokens, tokens)
            ),
        )
        return self._judge(tries, chunk, alone=alone)

    def has_room(self, wish: JoinCost | Chunks | DraftPass) -> bool:
        """Return whether a join, chunks in one pass or drafts would fit as things stand."""
        reading = self._read()
        if self._forecast is None or not reading.limited:
            return True
        if isinstance(wish, Chunks):
            need_bytes = self._correction.apply(self.predict(wish))
        elif isinstance(wish, DraftPass):
            verify_bytes = self._forecast.verify_bytes(wish.held_tokens, wish.width_tokens)
            need_bytes = self._correction.apply(verify_bytes)
        else:
            need_bytes = self._forecast.join_bytes(wish)
        return need_bytes <= reading.room_bytes

    def judge_join(self, tries: Tries, cost: JoinCost, *, alone: bool) -> Decision:
        """Return what to do about a row that is ready to be decoded with the others."""
        if self._forecast is None:
            return Run()
        need_bytes = self._forecast.join_bytes(cost)
        last = NextChunk(1, lambda _tokens: need_bytes, lambda _tokens: need_bytes)
        return self._judge(tries, last, alone=alone)

    def predict(self, chunks: Chunks) -> int:
        """Return the uncorrected prediction for a pass; 0 without a shape."""
        forecast = self._forecast
        if forecast is None:
            return 0
        held_tokens, tokens = chunks.held_tokens, chunks.tokens
        logits_bytes = forecast.logits_bytes(held_tokens, tokens, chunks.total_tokens)
        row_bytes = forecast.chunk_bytes(held_tokens, tokens) + logits_bytes
        return chunks.rows * row_bytes + chunks.moved_bytes

    def learn(self, predicted_bytes: int, actual_bytes: int) -> None:
        """Take in what a chunk really took."""
        self._correction = self._correction.observed(predicted_bytes, actual_bytes)

    def _note_held(self) -> int:
        gauges = self._memory.read()
        self._high_water.note(gauges)
        over_bytes = gauges.active_bytes + gauges.cache_bytes - self.limits.budget_bytes
        return max(0, over_bytes) if self.limits.budget_bytes > 0 else 0

    def _judge(self, tries: Tries, chunk: NextChunk, *, alone: bool) -> Decision:
        reading = self._read()
        if tries.asked_at_seconds is not None:
            if self._clock() - tries.asked_at_seconds > ANSWER_SECONDS:
                tries.asked_at_seconds = None
                tries.retryable = Retryable.LATER.value
            elif reading.limited and reading.room_bytes <= tries.asked_with_room_bytes:
                return Wait()
        decision = self._decide(reading, chunk, _attempts(tries, alone=alone))
        if isinstance(decision, Reclaim):
            tries.reclaimed = True
            self.reclaim()
            reading = self._read()
            decision = self._decide(reading, chunk, _attempts(tries, alone=alone))
        self._note(tries, decision, reading)
        return decision

    def _note(self, tries: Tries, decision: Decision, reading: GateReading) -> None:
        match decision:
            case Ask():
                tries.asks += 1
                tries.unanswered += 1
                tries.asked_at_seconds = self._clock()
                tries.asked_with_room_bytes = reading.room_bytes
            case Wait():
                tries.asked_with_room_bytes = reading.room_bytes
                return
            case Requeue() | Refuse():
                tries.asked_at_seconds = None
                tries.reclaimed = False
                tries.requeues += isinstance(decision, Requeue)
            case _:
                tries.asked_at_seconds = None
                tries.reclaimed = False
                return
        self._correction = self._correction.eased()

    def _read(self) -> GateReading:
        gauges, limits = self._memory.read(), self.limits
        return GateReading(
            high_water_bytes=self._high_water.over(gauges) + self.reserved.total_bytes,
            cache_bytes=gauges.cache_bytes,
            budget_bytes=limits.budget_bytes,
            margin_bytes=limits.margin_bytes,
            min_chunk_tokens=limits.min_chunk_tokens,
        )


def _attempts(tries: Tries, *, alone: bool) -> Attempts:
    return Attempts(
        reclaimed=tries.reclaimed,
        waiting=tries.held,
        asks=tries.asks,
        requeues=tries.requeues,
        final=tries.final,
        alone=alone,
    )
