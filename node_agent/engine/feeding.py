"""The rows that are fed, one chunk at a time, with the gate in front of every chunk.

Owns whose turn it is, and how long feeding may keep the rows that decode waiting. It holds no
array and imports no MLX. The scheduler calls it once each step, after decode.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from manifests.errors import Code
from node_agent.engine.forward_gate import Ask as MoreBytes
from node_agent.engine.forward_gate import Decision, Refuse, Requeue, Run, Shrink
from node_agent.engine.gatekeeper import Gatekeeper, Tries
from node_agent.engine.messages import (
    Answer,
    Ask,
    ChunkMeasured,
    Event,
    Failed,
    Generate,
    PrefillProgress,
    Restored,
)
from node_agent.engine.pace import Pace, plan_chunk_limit
from node_agent.engine.rows import Memory, PrefillStep, RestoreStep, RowRunner
from node_agent.engine.waiting import Prefilling


@dataclass(slots=True)
class FedRow:
    """One row whose prompt is not fed to its end yet; `cached_tokens` of it are stored."""

    command: Generate
    uid: int
    tries: Tries
    cached_tokens: int = 0


@dataclass(slots=True)
class Fed:
    """What one turn of the line did. The rows named here have left it."""

    events: list[Event] = field(default_factory=list)
    joined: list[FedRow] = field(default_factory=list)
    requeued: list[FedRow] = field(default_factory=list)
    refused: list[FedRow] = field(default_factory=list)


@dataclass(slots=True)
class _Turn:
    """What is left of one step. `until_seconds` None: nobody waits for it."""

    chunk_tokens: int
    left_tokens: int
    until_seconds: float | None
    fed: Fed = field(default_factory=Fed)

    @property
    def begun(self) -> bool:
        """Whether anything was fed or joined in it."""
        return self.left_tokens < self.chunk_tokens or bool(self.fed.joined)


class FeedingLine:
    """The rows that are fed: the highest priority first, in turn among equals."""

    def __init__(
        self,
        runner: RowRunner,
        memory: Memory,
        gatekeeper: Gatekeeper,
        clock: Callable[[], float],
    ) -> None:
        self._runner, self._memory, self._gatekeeper = runner, memory, gatekeeper
        self._clock = clock
        self._rows: list[FedRow] = []
        self._pace = Pace()
        self._fed_last = False

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

    @property
    def prefilling(self) -> list[Prefilling]:
        """The prompts being fed, as admission sees them."""
        return [
            Prefilling(len(row.command.prompt) - row.cached_tokens, row.command.priority)
            for row in self._rows
        ]

    def add(self, row: FedRow) -> None:
        """Let a row in, at the end."""
        self._rows.append(row)

    def remove(self, uid: int) -> None:
        """Let a row go; one that is not here changes nothing."""
        self._rows = [row for row in self._rows if row.uid != uid]

    def clear(self) -> None:
        """Let every row go."""
        self._rows.clear()

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
        does not fit in that waits for the next step. Without the turn nothing is fed and nobody
        joins.
        """
        chunk_tokens = self._runner.chunk_tokens
        until = self._clock() + self._pace.feed_seconds if decoding_rows else None
        turn = _Turn(chunk_tokens, chunk_tokens, until)
        self._fed_last = False
        if self._gatekeeper.limits.prefill_turn:
            for row in sorted(self._rows, key=lambda one: -one.command.priority):
                if turn.begun and until is not None and self._clock() >= until:
                    break
                alone = decoding_rows + len(turn.fed.joined) + len(self._rows) == 1
                self._feed_row(row, turn, alone=alone)
        self._fed_last = turn.begun
        return turn.fed

    def _feed_row(self, row: FedRow, turn: _Turn, *, alone: bool) -> None:
        """Feed a row what the turn has left for it, and let it join when it is through."""
        if not self._restore(row, turn.fed, alone=alone):
            return
        need_tokens = len(row.command.prompt) - 1 - self._runner.held_tokens(row.uid)
        if need_tokens > 0:
            limit_tokens = self._limit_tokens(row, turn, need_tokens)
            if turn.left_tokens < turn.chunk_tokens and need_tokens > limit_tokens:
                return
            fed_tokens = self._feed_chunk(row, limit_tokens, turn.fed, alone=alone)
            turn.left_tokens -= fed_tokens
            need_tokens -= fed_tokens
        if need_tokens == 0 and row in self._rows:
            self._join(row, turn.fed, alone=alone)

    def _restore(self, row: FedRow, fed: Fed, *, alone: bool) -> bool:
        """Start a row from stored blocks if the gate lets it; False while it has to wait."""
        need_bytes = self._runner.restore_bytes(row.uid)
        if not need_bytes:
            return True
        decision = self._gatekeeper.judge_restore(row.tries, need_bytes, alone=alone)
        if isinstance(decision, Refuse):
            # Fed from the start the prompt takes its memory bit by bit; that may still do.
            self._runner.start_cold(row.uid)
            row.cached_tokens = 0
            return True
        if not isinstance(decision, Run):
            self._stop(row, decision, fed)
            return False
        step = self._runner.restore(row.uid)
        self._memory.clear()
        row.cached_tokens = step.tokens
        if step.tokens:
            fed.events.append(_restored(row, step))
        return True

    def _limit_tokens(self, row: FedRow, turn: _Turn, need_tokens: int) -> int:
        """Return how wide a row's chunk may be in what is left of the turn."""
        if turn.until_seconds is None:
            return turn.left_tokens
        held_tokens = self._runner.held_tokens(row.uid)
        seconds = turn.until_seconds - self._clock()
        if turn.begun:
            return min(turn.left_tokens, self._pace.tokens_in(seconds, held_tokens))
        return plan_chunk_limit(
            self._pace,
            limit_tokens=turn.left_tokens,
            held_tokens=held_tokens,
            left_tokens=need_tokens,
            seconds=seconds,
        )

    def _feed_chunk(self, row: FedRow, limit_tokens: int, fed: Fed, *, alone: bool) -> int:
        """Feed a row's next chunk if the gate lets it; return how many tokens were fed."""
        held_tokens = self._runner.held_tokens(row.uid)
        wanted_tokens = self._runner.next_chunk_tokens(row.uid, limit_tokens)
        decision = self._gatekeeper.judge_chunk(
            row.tries,
            held_tokens=held_tokens,
            total_tokens=len(row.command.prompt),
            wanted_tokens=wanted_tokens,
            alone=alone,
        )
        if not isinstance(decision, Run | Shrink):
            self._stop(row, decision, fed)
            return 0
        chunk_tokens = wanted_tokens
        if isinstance(decision, Shrink):
            chunk_tokens = self._runner.next_chunk_tokens(row.uid, decision.chunk_tokens)
        predicted_bytes = self._gatekeeper.predict(held_tokens, chunk_tokens)
        self._memory.begin_chunk()
        step = self._runner.feed(row.uid, chunk_tokens)
        actual_bytes = self._memory.end_chunk()
        # Each chunk's scores have a length of their own, so freed buffers would only pile up.
        self._memory.clear()
        self._gatekeeper.learn(predicted_bytes, actual_bytes)
        self._pace = self._pace.fed(held_tokens, chunk_tokens, step.seconds)
        self._rows.remove(row)
        self._rows.append(row)
        measured = ChunkMeasured(
            request_id=row.command.request_id,
            chunk_tokens=chunk_tokens,
            context_tokens=step.done_tokens,
            predicted_bytes=predicted_bytes,
            actual_bytes=actual_bytes,
        )
        fed.events += [_progress(row, step), measured]
        return chunk_tokens

    def _join(self, row: FedRow, fed: Fed, *, alone: bool) -> None:
        """Let a row join those being decoded if the gate lets it."""
        cost = self._runner.join_cost(row.uid, apart=False)
        # A batch of its own costs a forward pass each step, but no padding.
        apart = not self._gatekeeper.has_room(cost)
        if apart:
            cost = self._runner.join_cost(row.uid, apart=True)
        decision = self._gatekeeper.judge_join(row.tries, cost, alone=alone)
        if not isinstance(decision, Run):
            self._stop(row, decision, fed)
            return
        step = self._runner.join(row.uid, apart=apart)
        self._rows.remove(row)
        fed.joined.append(row)
        fed.events.append(_progress(row, step))

    def _stop(self, row: FedRow, decision: Decision, fed: Fed) -> None:
        """Carry out a decision that lets the row feed nothing now."""
        request_id = row.command.request_id
        match decision:
            case MoreBytes(more_bytes):
                fed.events.append(Ask(request_id=request_id, more_bytes=more_bytes))
            case Requeue():
                self._drop(row)
                fed.requeued.append(row)
            case Refuse(message):
                self._drop(row)
                fed.refused.append(row)
                advice = row.tries.advice
                fed.events.append(
                    Failed(
                        request_id=request_id,
                        code=Code.PREFILL_MEMORY_EXCEEDED.value,
                        message=f"{message}; {advice}" if advice else message,
                        retryable=row.tries.retryable,
                    )
                )
            case _:
                pass

    def _drop(self, row: FedRow) -> None:
        self._rows.remove(row)
        self._runner.remove(row.uid)
        self._memory.clear()


def _restored(row: FedRow, step: RestoreStep) -> Restored:
    return Restored(
        request_id=row.command.request_id,
        tokens=step.tokens,
        hot_blocks=step.hot_blocks,
        ssd_blocks=step.ssd_blocks,
        seconds=step.seconds,
    )


def _progress(row: FedRow, step: PrefillStep) -> PrefillProgress:
    return PrefillProgress(
        request_id=row.command.request_id,
        done_tokens=step.done_tokens,
        total_tokens=step.total_tokens,
        chunk_tokens=step.chunk_tokens,
        seconds=step.seconds,
    )
