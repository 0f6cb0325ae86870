"""A row runner and a memory that only count, for tests of the scheduler and the gate.

A token of KV costs `kv_bytes`, a chunk also takes `scratch_bytes` for each of its tokens while it
runs. The memory remembers the highest it ever held, so a test can compare that with a budget.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from manifests.sizing.estimate import LayerGroup, LayerKind, ModelShape
from node_agent.engine.batching.chunking import cut_chunk
from node_agent.engine.mailbox import MemoryGauges
from node_agent.engine.messages import Generate
from node_agent.engine.rows import (
    DraftPass,
    DraftTally,
    HasRoom,
    JoinCost,
    PrefillStep,
    RestoreStep,
    TokenStep,
    never,
)
from node_agent.engine.scheduling.forecast import Forecast

# One layer that grows, nothing else: a chunk takes its KV, its scores and its activations.
SHAPE = ModelShape(
    model_type="counted",
    groups=(LayerGroup(kind=LayerKind.FULL, layers=1, bytes_per_token=64),),
    hidden_size=8,
    intermediate_size=8,
    attention_heads=1,
    kv_heads=1,
    head_dim=8,
    vocab_size=16,
    dtype_bytes=2,
    context_tokens=1 << 20,
    row_elements=32,
)
FORECAST = Forecast(SHAPE, fused=False)


@dataclass
class CountingRunner:
    """Feeds as asked, then gives token 100, 101, ... of each row.

    A chunk says that it took `token_seconds` for each of its tokens. Rows walk together when
    `moved_bytes` is set. One that decodes alone asks for a pass of `draft_width`. Rows that ended
    still hold `vacant_tokens`.
    """

    max_rows: int = 4
    chunk_tokens: int = 8
    rows: dict[int, Generate] = field(default_factory=dict)
    fed: dict[int, int] = field(default_factory=dict)
    made: dict[int, int] = field(default_factory=dict)
    joined: list[int] = field(default_factory=list)
    chunks: list[tuple[str, int]] = field(default_factory=list)
    inserted: int = 0
    padding_bytes: int = 0
    apart: list[str] = field(default_factory=list)
    token_seconds: float = 1e-4
    stored_tokens: int = 0
    stored: dict[int, int] = field(default_factory=dict)
    restore_token_bytes: int = 64
    restore_pieces: int = 1
    moved_bytes: int | None = None
    passes: list[tuple[str, ...]] = field(default_factory=list)
    draft_width: int = 0
    drafted: list[bool] = field(default_factory=list)
    vacant_tokens: int = 0
    draft_tally: DraftTally = field(default_factory=DraftTally)

    def insert(self, command: Generate) -> int:
        uid, self.inserted = 10 + self.inserted, self.inserted + 1
        self.rows[uid], self.fed[uid], self.made[uid] = command, 0, 0
        if self.stored_tokens:
            self.stored[uid] = min(self.stored_tokens, len(command.prompt) - 1)
        return uid

    def prompt(self, uid: int) -> "CountingPrompt":
        return CountingPrompt(self, uid)

    def remove(self, uid: int, *, keep: bool = False) -> None:
        del self.rows[uid], self.fed[uid]
        self.joined = [other for other in self.joined if other != uid]

    def held_tokens(self, uid: int) -> int:
        return self.fed[uid]

    def next_chunk_tokens(self, uid: int, limit_tokens: int) -> int:
        return cut_chunk(self.fed[uid], len(self.rows[uid].prompt) - 1, limit_tokens, ())

    def feed(self, uid: int, chunk_tokens: int) -> PrefillStep:
        self.fed[uid] += chunk_tokens
        self.chunks.append((self.rows[uid].request_id, chunk_tokens))
        seconds = chunk_tokens * self.token_seconds
        return PrefillStep(uid, self.fed[uid], len(self.rows[uid].prompt), chunk_tokens, seconds)

    def lockstep_bytes(self, uids: Sequence[int]) -> int | None:
        assert len({self.fed[uid] for uid in uids}) == 1
        return self.moved_bytes

    def feed_together(self, uids: Sequence[int], chunk_tokens: int) -> tuple[PrefillStep, ...]:
        self.passes.append(tuple(self.rows[uid].request_id for uid in uids))
        return tuple(self.feed(uid, chunk_tokens) for uid in uids)

    def compact(self) -> bool:
        vacant, self.vacant_tokens = self.vacant_tokens > 0, 0
        return vacant

    def part(self) -> None:
        pass

    def join_cost(self, uid: int, *, apart: bool) -> JoinCost:
        return JoinCost(added_bytes=0 if apart else self.padding_bytes)

    def join(self, uid: int, *, apart: bool) -> PrefillStep:
        self.apart += [self.rows[uid].request_id] if apart else []
        total = self.fed[uid] = len(self.rows[uid].prompt)
        self.joined.append(uid)
        return PrefillStep(uid, total, total, 1, 0.0)

    def first_tokens(self) -> tuple[TokenStep, ...]:
        return ()

    def decode(self, has_room: HasRoom = never) -> tuple[TokenStep, ...]:
        if self.draft_width and len(self.joined) == 1:
            wish = DraftPass(self.fed[self.joined[0]], self.draft_width)
            self.drafted.append(has_room(wish))
        return tuple(self._decode(uid) for uid in list(self.joined))

    def _decode(self, uid: int) -> TokenStep:
        command, token = self.rows[uid], 100 + self.made[uid]
        self.made[uid] += 1
        self.fed[uid] += 1
        finish = "length" if self.made[uid] >= command.max_tokens else None
        finish = "stop" if token in command.stop_token_ids else finish
        if finish:
            self.remove(uid)
        return TokenStep(uid, token, finish)


@dataclass
class CountingPrompt:
    """One row's prompt; the first `stored` tokens of it are there when it starts."""

    runner: CountingRunner
    uid: int

    @property
    def fed_tokens(self) -> int:
        return self.runner.held_tokens(self.uid)

    def next_chunk_tokens(self, limit_tokens: int) -> int:
        return self.runner.next_chunk_tokens(self.uid, limit_tokens)

    def feed(self, uid: int, chunk_tokens: int) -> PrefillStep:
        return self.runner.feed(uid, chunk_tokens)

    def restore_bytes(self) -> int:
        return self.runner.stored.get(self.uid, 0) * self.runner.restore_token_bytes

    def restore(self, uid: int, wait_seconds: float) -> RestoreStep | None:
        if self.runner.restore_pieces > 1:
            self.runner.restore_pieces -= 1
            return None
        tokens = self.runner.fed[uid] = self.runner.stored.pop(uid)
        return RestoreStep(uid, tokens, hot_blocks=1)

    def start_cold(self) -> None:
        del self.runner.stored[self.uid]


@dataclass
class CountingMemory:
    """Holds what a runner's rows hold; what they let go stays cached until it is cleared.

    `chunk_bytes` is the peak every chunk reports; `extra_bytes` is held by nobody in particular.
    """

    runner: CountingRunner
    kv_bytes: int = 64
    extra_bytes: int = 0
    cached_bytes: int = 0
    chunk_bytes: int = 0
    clears: int = 0
    highest_bytes: int = 0

    @property
    def active_bytes(self) -> int:
        return self.extra_bytes + self.kv_bytes * (
            self.runner.vacant_tokens + sum(self.runner.fed.values())
        )

    def read(self) -> MemoryGauges:
        self.highest_bytes = max(self.highest_bytes, self.active_bytes)
        return MemoryGauges(self.active_bytes, self.cached_bytes, self.highest_bytes)

    def clear(self) -> None:
        self.clears += 1
        self.cached_bytes = 0

    def begin_chunk(self) -> None:
        pass

    def end_chunk(self) -> int:
        return self.chunk_bytes


def row(name: str, prompt_tokens: int = 3, max_tokens: int = 2, **fields: object) -> Generate:
    """Return a row of the wanted length."""
    prompt = [1] * prompt_tokens
    return Generate(request_id=name, prompt=prompt, max_tokens=max_tokens, **fields)
