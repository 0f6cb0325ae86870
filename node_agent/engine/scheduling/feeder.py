"""Feeds one row's next piece, with the gate in front of it.

Owns the asking and the doing: a restore, a chunk, a join. It holds no array and imports no MLX.
The feeding line calls it, and owns whose turn it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from manifests.errors import Code
from node_agent.engine.batching.chunking import STEP_TOKENS, even_part
from node_agent.engine.messages import (
    Ask,
    ChunkMeasured,
    Event,
    Failed,
    Generate,
    PrefillProgress,
    Restored,
)
from node_agent.engine.rows import JoinCost, Memory, PrefillStep, RestoreStep, RowRunner
from node_agent.engine.scheduling.forward_gate import Ask as MoreBytes
from node_agent.engine.scheduling.forward_gate import Decision, Refuse, Requeue, Run, Shrink
from node_agent.engine.scheduling.gatekeeper import Chunks, Gatekeeper, Tries


@dataclass(slots=True)
class FedRow:
    """One row whose prompt is not fed to its end yet.

    `stored_tokens` of it are stored, as far as is known; it was started from `cached_tokens`.
    While it is `restoring`, its memory is granted and more is done at each turn.
    """

    command: Generate
    uid: int
    tries: Tries
    stored_tokens: int = 0
    cached_tokens: int = 0
    restoring: bool = False


@dataclass(slots=True)
class Fed:
    """What one turn of the line did. The rows named here leave it."""

    events: list[Event] = field(default_factory=list)
    joined: list[FedRow] = field(default_factory=list)
    requeued: list[FedRow] = field(default_factory=list)
    refused: list[FedRow] = field(default_factory=list)


class Feeder:
    """Runs what the gate lets run."""

    def __init__(self, runner: RowRunner, memory: Memory, gatekeeper: Gatekeeper) -> None:
        self._runner, self._memory, self._gatekeeper = runner, memory, gatekeeper
        # Under whose name room is kept for taking apart what walks together.
        self._walking: int | None = None

    def restore(self, row: FedRow, fed: Fed, *, alone: bool, wait_seconds: float) -> bool:
        """Do a piece of a row's start from stored blocks; False while there is more to do.

        The gate is asked before the first piece. It waits so long for blocks at most.
        """
        prompt = self._runner.prompt(row.uid)
        if not row.restoring:
            need_bytes = prompt.restore_bytes()
            if not need_bytes:
                return need_bytes is not None
            row.restoring = self._may_restore(row, need_bytes, fed, alone=alone)
            if not row.restoring:
                # Held back, or told to start from nothing.
                return not prompt.restore_bytes()
        step = prompt.restore(row.uid, wait_seconds)
        if step is None:
            self._gatekeeper.reserved.keep(row.uid, prompt.restore_bytes() or 0)
            return False
        self.forget(row.uid)
        row.restoring = False
        self._memory.clear()
        row.stored_tokens = row.cached_tokens = step.tokens
        if step.tokens:
            fed.events.append(_restored(row, step))
        return True

    def forget(self, uid: int) -> None:
        """Give back what is kept for a row that is restored, or gone."""
        self._gatekeeper.reserved.keep(uid, 0)

    def _may_restore(self, row: FedRow, need_bytes: int, fed: Fed, *, alone: bool) -> bool:
        """Return whether a row's restore may begin now."""
        # Nothing is decoded by it, so it is judged like a join of no rows.
        cost = JoinCost(rows=0, added_bytes=need_bytes)
        self._make_room(cost)
        decision = self._gatekeeper.judge_join(row.tries, cost, alone=alone)
        if isinstance(decision, Refuse):
            # Fed from the start the prompt takes its memory bit by bit; that may still do.
            self._runner.prompt(row.uid).start_cold()
            row.stored_tokens = 0
        elif not isinstance(decision, Run):
            self._stop(row, decision, fed)
        return isinstance(decision, Run)

    def feed_chunk(
        self, row: FedRow, limit_tokens: int, fed: Fed, *, alone: bool
    ) -> PrefillStep | None:
        """Feed a row's next chunk if the gate lets it."""
        prompt = self._runner.prompt(row.uid)
        held_tokens = prompt.fed_tokens
        wanted_tokens = prompt.next_chunk_tokens(limit_tokens)
        self._make_room(Chunks(held_tokens, wanted_tokens, len(row.command.prompt)))
        decision = self._gatekeeper.judge_chunk(
            row.tries,
            held_tokens=held_tokens,
            total_tokens=len(row.command.prompt),
            wanted_tokens=wanted_tokens,
            alone=alone,
        )
        if not isinstance(decision, Run | Shrink):
            self._stop(row, decision, fed)
            return None
        chunk_tokens = wanted_tokens
        if isinstance(decision, Shrink):
            chunk_tokens = prompt.next_chunk_tokens(decision.chunk_tokens)
        self._part()
        predicted_bytes = self._gatekeeper.predict(
            Chunks(held_tokens, chunk_tokens, len(row.command.prompt))
        )
        self._memory.begin_chunk()
        step = prompt.feed(row.uid, chunk_tokens)
        actual_bytes = self._memory.end_chunk()
        # Each chunk's scores have a length of their own, so freed buffers would only pile up.
        self._memory.clear()
        self._gatekeeper.learn(predicted_bytes, actual_bytes)
        measured = ChunkMeasured(
            request_id=row.command.request_id,
            chunk_tokens=chunk_tokens,
            context_tokens=step.done_tokens,
            predicted_bytes=predicted_bytes,
            actual_bytes=actual_bytes,
        )
        fed.events += [_progress(row, step), measured]
        return step

    def feed_together(
        self, rows: Sequence[FedRow], limit_tokens: int, fed: Fed
    ) -> tuple[PrefillStep, ...]:
        """Feed each of these rows a chunk, in one pass; nothing when that cannot be or not fit."""
        if not rows:
            return ()
        uids = [row.uid for row in rows]
        prompts = [self._runner.prompt(uid) for uid in uids]
        moved_bytes = self._runner.lockstep_bytes(uids)
        if moved_bytes is None:
            return ()
        left_tokens = min(
            len(row.command.prompt) - 1 - prompt.fed_tokens
            for row, prompt in zip(rows, prompts, strict=True)
        )
        way_tokens = min(left_tokens, STEP_TOKENS - prompts[0].fed_tokens % STEP_TOKENS)
        part_tokens = min(even_part(way_tokens, limit_tokens), self._runner.chunk_tokens)
        tokens = min(left_tokens, *(prompt.next_chunk_tokens(part_tokens) for prompt in prompts))
        held_tokens = prompts[0].fed_tokens
        total_tokens = min(len(row.command.prompt) for row in rows)
        chunks = Chunks(held_tokens, tokens, total_tokens, len(rows), moved_bytes)
        if tokens <= 0 or not self._gatekeeper.has_room(chunks):
            return ()
        predicted_bytes = self._gatekeeper.predict(chunks)
        self._memory.begin_chunk()
        steps = self._runner.feed_together(uids, tokens)
        actual_bytes = self._memory.end_chunk()
        self._keep_room(uids)
        self._memory.clear()
        self._gatekeeper.learn(predicted_bytes, actual_bytes)
        for row, step in zip(rows, steps, strict=True):
            measured = ChunkMeasured(
                request_id=row.command.request_id,
                chunk_tokens=tokens,
                context_tokens=step.done_tokens,
                predicted_bytes=predicted_bytes // len(rows),
                actual_bytes=actual_bytes // len(rows),
            )
            fed.events += [_progress(row, step), measured]
        return steps

    def join(self, row: FedRow, fed: Fed, *, alone: bool) -> None:
        """Let a row join those being decoded if the gate lets it."""
        self._part()
        cost = self._runner.join_cost(row.uid, apart=False)
        if self._make_room(cost):
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
        fed.joined.append(row)
        if step.chunk_tokens:
            fed.events.append(_progress(row, step))

    def _make_room(self, wish: JoinCost | Chunks) -> bool:
        """Have rows that ended give back what they hold, if that may be in the way.

        Returns whether they held anything.
        """
        if self._gatekeeper.has_room(wish):
            return False
        held_bytes = self._memory.read().active_bytes
        if not self._runner.compact():
            return False
        self._gatekeeper.reclaim(held_bytes - self._memory.read().active_bytes)
        return True

    def _keep_room(self, uids: Sequence[int]) -> None:
        """Keep room for taking these rows' common cache apart."""
        self._forget_walking()
        self._walking = uids[0]
        self._gatekeeper.reserved.keep(uids[0], self._runner.lockstep_bytes(uids) or 0)

    def _part(self) -> None:
        """Give rows that walked together caches of their own; room was kept for that."""
        if self._walking is not None:
            self._runner.part()
            self._memory.clear()
            self._forget_walking()

    def _forget_walking(self) -> None:
        if self._walking is not None:
            self._gatekeeper.reserved.keep(self._walking, 0)
            self._walking = None

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
