"""Stored prefixes and the rows of one engine: what a row starts from, and what it leaves behind.

Owns the joining of codec, tiers and capture plans. Called on the MLX thread: by admission, which
asks what a prompt could start from, and by the runners, for each row. A row's cache is cut into
blocks while it stands where a block wants it; nothing here ever fails a row: the worst case is
that a row starts from nothing and leaves nothing.
"""

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import structlog
from mlx import nn
from mlx_lm.models.cache import make_prompt_cache

from manifests.wire.prefix_chain import ChainRoot, PrefixChain
from node_agent.engine.messages import Generate
from node_agent.engine.prefix.kv_codec import KvCodec, RestoreError
from node_agent.engine.prefix.prefix_store import PrefixStore
from node_agent.engine.prefix.row_restore import STEP_BYTES, RowRestore
from node_agent.engine.rows import PrefixPlan, RestoreStep
from node_agent.kvcache.block import Block, BlockHeader, Tier, stored
from node_agent.kvcache.capture_plan import (
    Capture,
    CaptureRules,
    plan_capture_now,
    plan_captures,
)
from node_agent.kvcache.layer_kinds import CacheLayout
from node_agent.kvcache.restore_plan import BlockUse, RestorePlan
from node_agent.kvcache.tiers import LoadedBlock

# Snapshots of one prompt may take this much; more ends than that keep none.
SNAPSHOT_BUDGET_BYTES = 256 << 20
# A KV cache grows by whole steps of this many tokens.
_STEP_TOKENS = 256
# A chain is wanted twice or three times on a request's way in.
_CHAINS_KEPT = 64

# So long is an index asked again that is slow to answer, by others' commits or a busy machine.
_LATE_SECONDS = 0.5
# So long may a block take from the engine to the disk before those who wait compute it.
_DISK_WAIT_SECONDS = 1.0

_LOG = structlog.get_logger(__name__)

Caches = list[Any]


@dataclass(frozen=True, slots=True)
class _Done:
    request_id: str
    digest: bytes
    snapshot_mask: int
    until_seconds: float


class PrefixCache:
    """The stored prefixes of one model."""

    def __init__(self, codec: KvCodec, fingerprint: str, store: PrefixStore) -> None:
        self.fingerprint = fingerprint
        self.layout: CacheLayout = codec.layout
        self.rules = CaptureRules(store.settings.block_tokens, SNAPSHOT_BUDGET_BYTES)
        self.store = store
        self.restore_step_bytes = STEP_BYTES
        self._codec = codec
        self._tiers = store.tiers((fingerprint, codec.layout))
        self._done: deque[_Done] = deque()
        self._chains: OrderedDict[str, tuple[Generate, PrefixChain]] = OrderedDict()

    def plan(self, command: Generate) -> PrefixPlan:
        """Return what a request's prompt could start from now, and what it would compute."""
        chain = self.chain(command)
        cached_tokens = self._tiers.plan(chain).tokens
        captures = plan_captures(self.layout, self.rules, chain.tokens, cached_tokens)
        useful = [one for one in captures if one.snapshot or not self.layout.snapshot_mask]
        return PrefixPlan(cached_tokens, tuple(_digest(chain, one) for one in useful))

    def take_done(self) -> tuple[tuple[str, bytes], ...]:
        """Return request and digest of the blocks that can be started from since the last call.

        Without room in RAM that is once they are on the disk, if that does not take too long.
        """
        ready: list[tuple[str, bytes]] = []
        while self._done and self._is_ready(self._done[0]):
            done = self._done.popleft()
            ready.append((done.request_id, done.digest))
        return tuple(ready)

    def row(self, command: Generate) -> "RowPrefix":
        """Return the keeper of one row's prefix."""
        return RowPrefix(self, command)

    def chain(self, command: Generate) -> PrefixChain:
        """Return the names of a prompt's blocks."""
        named, chain = self._chains.get(command.request_id, (None, None))
        # The very same command: an id may come again with another prompt, whose names differ.
        if chain is None or named is not command:
            chain = self.name(command, command.prompt)
            self._chains[command.request_id] = (command, chain)
            if len(self._chains) > _CHAINS_KEPT:
                self._chains.popitem(last=False)
        return chain

    def name(self, command: Generate, tokens: Sequence[int]) -> PrefixChain:
        """Return the names of the blocks of a request's tokens."""
        root = ChainRoot(self.fingerprint, tuple(command.extra_keys))
        return PrefixChain.of(root, tokens, self.rules.block_tokens)

    def find(self, chain: PrefixChain) -> RestorePlan:
        """Return the deepest start."""
        return self._tiers.plan(chain)

    def build_bytes(self, plan: RestorePlan) -> int:
        """Return what building a row's cache takes: itself, one layer twice, and what is read."""
        room_tokens = -(-plan.tokens // _STEP_TOKENS) * _STEP_TOKENS
        layers = [one.token_bytes * room_tokens + one.snapshot_bytes for one in self.layout.layers]
        return sum(layers) + max(layers, default=0) + plan.load_bytes(Tier.SSD)

    def begin(self, chain: PrefixChain, plan: RestorePlan | None) -> RowRestore:
        """Begin to restore a row, by the plan made a moment ago if any; it is to be closed."""
        restoring = self._tiers.begin(chain, self.store.readers, plan)
        return RowRestore(restoring, self._codec, self.restore_step_bytes)

    def capture(
        self, request_id: str, chain: PrefixChain, caches: Caches, capture: Capture
    ) -> None:
        """Cut a block out of a row's cache and store it, unless it is stored already."""
        end_tokens = capture.end_tokens
        start_tokens = (end_tokens - 1) // chain.block_tokens * chain.block_tokens
        if not self._tiers.holds(chain, end_tokens, snapshot=capture.snapshot):
            layers, tensors = self._codec.cut(
                caches, start_tokens, end_tokens, snapshot=capture.snapshot
            )
            self._tiers.keep(Block(self._tiers.header(chain, end_tokens, layers), tensors))
        until_seconds = time.monotonic() + _DISK_WAIT_SECONDS
        mask = self.layout.snapshot_mask if capture.snapshot else 0
        self._done.append(_Done(request_id, _digest(chain, capture), mask, until_seconds))

    def _is_ready(self, done: "_Done") -> bool:
        hot, disk = self.store.hot, self.store.disk
        if disk is None or hot.contains(done.digest, done.snapshot_mask):
            return True
        late = time.monotonic() >= done.until_seconds
        return late or disk.store.contains(done.digest, done.snapshot_mask)


class RowPrefix:
    """One row's way: start from stored blocks or from nothing, then leave blocks behind."""

    def __init__(self, cache: PrefixCache, command: Generate) -> None:
        self._cache, self._command = cache, command
        self._chain = cache.chain(command)
        self._plan: RestorePlan | None = None
        self._captures: list[Capture] | None = None
        self._restore: RowRestore | None = None
        self._started_seconds = 0.0
        self._kept_tokens = 0
        # Until when an index that is slow is asked again.
        self._late_seconds: float | None = None

    @property
    def stops(self) -> tuple[int, ...]:
        """Where a chunk must end because the cache is wanted as it stands there."""
        return tuple(one.end_tokens for one in self._wanted() if one.snapshot)

    def restore_bytes(self) -> int | None:
        """Return what starting from stored blocks still takes; 0 when there are none.

        None while the index is slow to say: it is asked again for a while, as computing a prefix
        takes longer.
        """
        if self._restore is not None and self._plan is not None:
            return max(0, self._cache.build_bytes(self._plan) - self._restore.built_bytes)
        if self._captures is not None:
            return 0
        if self._plan is None:
            plan, now = self._cache.find(self._chain), time.monotonic()
            if self._late_seconds is None:
                self._late_seconds = now + _LATE_SECONDS
            if plan.late and now < self._late_seconds:
                return None
            self._plan = plan
        if not self._plan.blocks:
            self._cache.store.stats.add(misses=1)
            self.begin(0)
            return 0
        return self._cache.build_bytes(self._plan)

    def restore(self, uid: int, wait_seconds: float) -> tuple[Caches | None, RestoreStep] | None:
        """Do a piece of the start from stored blocks; None while there is more to do.

        No cache when they are gone after all. It waits so long for blocks at most.
        """
        if self._restore is None:
            self._started_seconds = time.perf_counter()
            self._restore = self._cache.begin(self._chain, self._plan)
        restore = self._restore
        try:
            if not restore.step(wait_seconds):
                return None
        except RestoreError as error:
            self._cache.store.stats.add(faults=1)
            _LOG.warning("stored blocks do not fit the model", problem=str(error))
            self.close()
            self.begin(0)
            return None, RestoreStep(uid)
        self.close()
        self.begin(restore.restored.tokens)
        tiers = [one.use.block.tier for one in restore.restored.blocks]
        seconds = time.perf_counter() - self._started_seconds
        hot, ssd = tiers.count(Tier.HOT), tiers.count(Tier.SSD)
        return restore.caches, RestoreStep(uid, restore.restored.tokens, hot, ssd, seconds)

    def start_cold(self) -> None:
        """Start from nothing, as there is no memory for what is stored; it is counted."""
        self._cache.store.stats.add(refused_restores=1)
        self.begin(0)

    def close(self) -> None:
        """Let the blocks go that a restore holds."""
        if self._restore is not None:
            self._restore.close()
            self._restore = None

    def begin(self, restored_tokens: int) -> None:
        """Note where the row starts, and plan what it leaves behind."""
        self._kept_tokens = restored_tokens
        self._captures = list(
            plan_captures(
                self._cache.layout, self._cache.rules, self._chain.tokens, restored_tokens
            )
        )

    def note_fed(
        self, view: Callable[[], Caches], fed_tokens: int, *, urgent: bool = False
    ) -> None:
        """Store the blocks that ended with what was fed. `view` gives the row's cache.

        Only the `urgent` ones are those that no later call could store.
        """
        wanted = self._wanted()
        ended = [one for one in wanted if one.end_tokens <= fed_tokens]
        # Of a snapshot nothing is left once the row has gone on; blocks of KV can wait.
        for capture in [one for one in ended if one.snapshot or not urgent]:
            wanted.remove(capture)
            self._capture(self._chain, view(), capture)

    def is_due(self, held_tokens: int) -> bool:
        """Return whether a row that decodes has filled a block, perhaps some tokens ago."""
        size = self._cache.rules.block_tokens
        if held_tokens % size == 0:
            return True
        return self._cache.layout.needs_chain and held_tokens // size > self._kept_tokens // size

    def note_decoded(
        self, tokens: Sequence[int], view: Callable[[], Caches], *, finished: bool
    ) -> None:
        """Store what a row that decodes holds now: full blocks, and the rest when it is finished.

        `view` gives the row's cache, which stands at all of `tokens`.
        """
        cache, held_tokens = self._cache, len(tokens)
        last = plan_capture_now(cache.layout, cache.rules, held_tokens, finished)
        size = cache.rules.block_tokens
        first_end = (self._kept_tokens // size + 1) * size
        ends = range(first_end, held_tokens, size) if cache.layout.needs_chain else range(0)
        captures = [Capture(end, snapshot=False) for end in ends]
        captures += [last] if last is not None else []
        if not captures:
            return
        chain, caches = cache.name(self._command, tokens), view()
        for capture in captures:
            self._capture(chain, caches, capture)

    def _capture(self, chain: PrefixChain, caches: Caches, capture: Capture) -> None:
        try:
            self._cache.capture(self._command.request_id, chain, caches, capture)
        except RestoreError as error:
            self._cache.store.stats.add(faults=1)
            _LOG.warning("a row's cache cannot be stored", problem=str(error))
        self._kept_tokens = max(self._kept_tokens, capture.end_tokens)

    def _wanted(self) -> list[Capture]:
        if self._captures is None:
            self.begin(0)
        return self._captures or []


def _digest(chain: PrefixChain, capture: Capture) -> bytes:
    index = (capture.end_tokens - 1) // chain.block_tokens
    return chain.digest_at(index, capture.end_tokens - index * chain.block_tokens)


def prove_codec(model: nn.Module, codec: KvCodec) -> None:
    """Store and restore two tokens, and see that the model goes on just as it would have.

    Raises: RestoreError when it does not.
    """
    caches = make_prompt_cache(model)
    mx.eval(model(mx.array([[0, 1]]), cache=caches))
    records, tensors = codec.cut(caches, 0, 2, snapshot=True)
    header = BlockHeader(b"", b"", 0, 2, b"", "", records)
    use = BlockUse(stored(header, 0, Tier.HOT), 2, bool(codec.layout.snapshot_mask))
    restored = codec.build([LoadedBlock(Block(header, tensors), use)], 2)
    following = mx.array([[2]])
    expected, found = model(following, cache=caches), model(following, cache=restored)
    if not mx.array_equal(expected, found, equal_nan=True).item():
        raise RestoreError("the model goes on differently from a restored cache")
