"""The rows that are fed, one chunk at a time, in turn.

Owns whose turn it is, and how long feeding may keep the rows that decode waiting. It holds no
array and imports no MLX. The scheduler calls it once each step, after decode.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from node_agent.engine.messages import Answer
from node_agent.engine.rows import Memory, RowRunner
from node_agent.engine.scheduling.feeder import Fed, FedRow, Feeder
from node_agent.engine.scheduling.gatekeeper import Gatekeeper
from node_agent.engine.scheduling.lockstep import (
    CATCH_UP_SECONDS,
    NOBODY,
    PASS_SECONDS,
    TOGETHER_SECONDS,
    Prefilling,
    Reach,
    choose_walkers,
)
from node_agent.engine.scheduling.pace import DECODE_SHARE, Pace, plan_chunk_limit
from node_agent.engine.scheduling.waiting import Beside

# So long a turn waits for blocks from the disk while no row decodes; commands come in between.
RESTORE_WAIT_SECONDS = 0.005


@dataclass(slots=True)
class _Turn:
    """What is left of one step. `until_seconds` None: nobody waits for it."""

    chunk_tokens: int
    left_tokens: int
    until_seconds: float | None
    restored: bool = False
    fed: Fed = field(default_factory=Fed)

    @property
    def begun(self) -> bool:
        """Whether anything was fed, restored or joined in it."""
        return self.left_tokens < self.chunk_tokens or self.restored or bool(self.fed.joined)


class FeedingLine:
    """The rows that are fed: the highest priority first, in turn among equals."""

    def __init__(
        self,
        runner: RowRunner,
        memory: Memory,
        gatekeeper: Gatekeeper,
        clock: Callable[[], float],
    ) -> None:
        self._runner, self._gatekeeper = runner, gatekeeper
        self._feeder = Feeder(runner, memory, gatekeeper)
        self._clock = clock
        self._rows: list[FedRow] = []
        self._pace = Pace()
        self._fed_last = False
        # Until then rows that decode have the engine to themselves.
        self._rest_until_seconds = -math.inf

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def held(self) -> int:
        """How many rows wait for an answer."""
        return sum(row.tries.held for row in self._rows)

    @property
    def runnable(self) -> bool:
        """Whether a turn would find a row to feed."""
        return self._gatekeeper.limits.prefill_turn and self.held < len(self._rows)

    def beside(self, decoding_rows: int) -> Beside:
        """Return the prompts being fed, as admission sees them."""
        rows = [_standing(self._runner, row) for row in self._rows]
        reach = NOBODY if decoding_rows else _reach(self._pace, rows)
        return Beside(rows, self._runner.chunk_tokens, reach)

    def add(self, row: FedRow) -> None:
        """Let a row in, at the end."""
        self._rows.append(row)

    def remove(self, uid: int) -> None:
        """Let a row go; one that is not here changes nothing."""
        self._rows = [row for row in self._rows if row.uid != uid]
        self._feeder.forget(uid)

    def clear(self) -> None:
        """Let every row go."""
        for row in list(self._rows):
            self.remove(row.uid)

    def answer(self, answer: Answer) -> None:
        """Note the agent's answer; the row asks the gate again at the next turn."""
        for row in self._rows:
            if row.command.request_id == answer.request_id:
                row.tries.hear(answer)

    def note_decode(self, seconds: float) -> None:
        """Note how long a decode step took; after a chunk part of it ran within the chunk."""
        if not self._fed_last:
            self._pace = self._pace.decoded(seconds)

    def feed(self, decoding_rows: int) -> Fed:
        """Feed at most one chunk's worth of tokens and let rows that are through join.

        One row feeds at a time, in turn; what it leaves of the chunk goes to rows that need no
        more than that to be through. While rows decode the chunk is also cut by time, and what
        does not fit in that waits for a later step, after decode has had its share. While nobody
        decodes, rows alike walk together, a chunk each. Without the turn nothing is fed and
        nobody joins.
        """
        chunk_tokens = self._runner.chunk_tokens
        started_seconds = self._clock()
        until = started_seconds + self._pace.feed_seconds if decoding_rows else None
        turn = _Turn(chunk_tokens, chunk_tokens, until)
        self._fed_last = False
        resting = until is not None and started_seconds < self._rest_until_seconds
        if self._gatekeeper.limits.prefill_turn and not resting:
            together = until is None and self._feed_together(turn)
            for row in () if together else _by_priority(self._rows):
                if turn.begun and until is not None and self._clock() >= until:
                    break
                alone = decoding_rows + len(turn.fed.joined) + len(self._rows) == 1
                self._feed_row(row, turn, alone=alone)
        self._fed_last = turn.begun
        if turn.begun:
            ended_seconds = self._clock()
            fed_seconds = ended_seconds - started_seconds
            self._rest_until_seconds = ended_seconds + DECODE_SHARE * fed_seconds
        return turn.fed

    def _feed_row(self, row: FedRow, turn: _Turn, *, alone: bool) -> None:
        """Feed a row what the turn has left for it, and let it join when it is through."""
        # Nobody else has anything to do meanwhile.
        wait_seconds = RESTORE_WAIT_SECONDS if turn.until_seconds is None else 0.0
        long = row.restoring
        if not self._feeder.restore(row, turn.fed, alone=alone, wait_seconds=wait_seconds):
            turn.restored = turn.restored or row.restoring
            self._settle(turn.fed)
            return
        if long and turn.until_seconds is not None:
            # The last piece was this turn's work; a forward pass behind so much is the next one's.
            turn.restored = True
            return
        need_tokens = _left_tokens(self._runner, row)
        if need_tokens > 0:
            fed_tokens = self._runner.prompt(row.uid).fed_tokens
            limit_tokens = _limit_tokens(self._pace, turn, fed_tokens, need_tokens, self._clock())
            if turn.left_tokens < turn.chunk_tokens and need_tokens > limit_tokens:
                return
            step = self._feeder.feed_chunk(row, limit_tokens, turn.fed, alone=alone)
            if step is not None:
                held_tokens = step.done_tokens - step.chunk_tokens
                rest = step.chunk_tokens < limit_tokens
                self._pace = self._pace.fed(held_tokens, step.chunk_tokens, step.seconds, rest=rest)
                self._rows = _let_pass(self._runner, self._rows, row)
                turn.left_tokens -= step.chunk_tokens
                need_tokens -= step.chunk_tokens
        if need_tokens <= 0:
            self._feeder.join(row, turn.fed, alone=alone)
        self._settle(turn.fed)

    def _feed_together(self, turn: _Turn) -> bool:
        """Feed a chunk of each of the rows that walk with the first; False when none do.

        Who is through waits for the others: nobody decodes before all are.
        """
        rows = _by_priority(self._rows)
        if len(rows) < 2 or any(row.tries.held or row.restoring for row in rows):
            return False
        if not all(
            self._feeder.restore(row, turn.fed, alone=False, wait_seconds=0) for row in rows
        ):
            self._settle(turn.fed)
            return False
        going = [row for row in rows if _left_tokens(self._runner, row) > 0]
        standing = [_standing(self._runner, row) for row in going]
        walkers = choose_walkers(standing, _reach(self._pace, standing), turn.chunk_tokens)
        walking = [going[place] for place in walkers.places]
        steps = self._feeder.feed_together(walking, walkers.limit_tokens, turn.fed)
        if not steps:
            return False
        held_tokens = steps[0].done_tokens - steps[0].chunk_tokens
        fed_tokens = sum(step.chunk_tokens for step in steps)
        seconds = sum(step.seconds for step in steps)
        rest = steps[0].chunk_tokens < walkers.limit_tokens
        self._pace = self._pace.fed(held_tokens, fed_tokens, seconds, rest=rest)
        turn.left_tokens -= fed_tokens
        return True

    def _settle(self, fed: Fed) -> None:
        """Let go of the rows that leave."""
        gone = (*fed.joined, *fed.requeued, *fed.refused)
        self._rows = [row for row in self._rows if not any(row is one for one in gone)]


def _limit_tokens(
    pace: Pace, turn: _Turn, held_tokens: int, need_tokens: int, now_seconds: float
) -> int:
    """Return how wide a row's chunk may be in what is left of the turn."""
    if turn.until_seconds is None:
        return turn.left_tokens
    seconds = turn.until_seconds - now_seconds
    if turn.begun:
        return min(turn.left_tokens, pace.tokens_in(seconds, held_tokens))
    return plan_chunk_limit(
        pace,
        limit_tokens=turn.left_tokens,
        held_tokens=held_tokens,
        left_tokens=need_tokens,
        seconds=seconds,
    )


def _standing(runner: RowRunner, row: FedRow) -> Prefilling:
    need_tokens = len(row.command.prompt) - row.stored_tokens
    at_tokens = max(row.stored_tokens, runner.prompt(row.uid).fed_tokens)
    return Prefilling(need_tokens, row.command.priority, at_tokens)


def _left_tokens(runner: RowRunner, row: FedRow) -> int:
    return len(row.command.prompt) - 1 - runner.prompt(row.uid).fed_tokens


def _reach(pace: Pace, rows: Sequence[Prefilling]) -> Reach:
    held_tokens = min((row.at_tokens for row in rows), default=0)
    times = (TOGETHER_SECONDS, CATCH_UP_SECONDS, PASS_SECONDS)
    return Reach(*(pace.whole_in(seconds, held_tokens) for seconds in times))


def _let_pass(runner: RowRunner, rows: Sequence[FedRow], row: FedRow) -> list[FedRow]:
    """Return the rows with one behind those that need one chunk at most; long ones keep order."""
    others = [one for one in rows if one is not row]
    short = [
        at for at, one in enumerate(others) if _left_tokens(runner, one) <= runner.chunk_tokens
    ]
    place = short[-1] + 1 if short else 0
    return [*others[:place], row, *others[place:]]


def _by_priority(rows: Sequence[FedRow]) -> list[FedRow]:
    return sorted(rows, key=lambda one: -one.command.priority)
