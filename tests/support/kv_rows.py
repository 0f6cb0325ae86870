"""Rows of tiny models in this process: fed cold, or from blocks that earlier rows left.

The same steps as the engine's, without its processes: chunks end where a snapshot is wanted,
blocks go through the tier in RAM. Imports MLX.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

from manifests.wire.prefix_chain import ChainRoot, PrefixChain
from node_agent.engine.batching.chunking import cut_chunk
from node_agent.engine.prefix.kv_codec import KvCodec, describe_layers
from node_agent.kvcache.block import Block
from node_agent.kvcache.capture_plan import (
    Capture,
    CaptureRules,
    plan_capture_now,
    plan_captures,
)
from node_agent.kvcache.hot import HotTier
from node_agent.kvcache.stats import StatsCounter
from node_agent.kvcache.tiers import CacheTiers, LoadedBlock
from tests.support.tiny_models import tiny_model

FINGERPRINT = "tiny"


@cache
def tiny(name: str, heads: int | None = None, dtype: str = "float32") -> nn.Module:
    """Return a tiny model, loaded once for the whole run."""
    return load_model(tiny_model(name, heads=heads, dtype=dtype))[0]


def feed(model: nn.Module, caches: list[Any], tokens: Sequence[int]) -> None:
    """Feed one chunk."""
    model(mx.array([list(tokens)]), cache=caches)
    mx.eval([layer.state for layer in caches])


def go_on(model: nn.Module, caches: list[Any], last: int, count: int) -> list[int]:
    """Feed the last token of a prompt and decode greedily."""
    said = [last]
    for _ in range(count):
        logits = model(mx.array([[said[-1]]]), cache=caches)[0, -1]
        said.append(int(mx.argmax(logits).item()))
    return said[1:]


def cold(model: nn.Module, prompt: Sequence[int], count: int, chunk_tokens: int = 64) -> list[int]:
    """Return what a model says without a cache."""
    caches = make_prompt_cache(model)
    for start in range(0, len(prompt) - 1, chunk_tokens):
        feed(model, caches, prompt[start : min(start + chunk_tokens, len(prompt) - 1)])
    return go_on(model, caches, prompt[-1], count)


@dataclass
class Warm:
    """What a row said, from how many cached tokens, and its cache afterwards."""

    said: list[int]
    cached_tokens: int
    caches: list[Any]


class Rows:
    """A model with a prefix cache in RAM."""

    def __init__(self, model: nn.Module, block_tokens: int, snapshot_budget: int = 1 << 30) -> None:
        self.model = model
        self.codec = KvCodec(model, describe_layers(model))
        self.rules = CaptureRules(block_tokens, snapshot_budget)
        stats = StatsCounter()
        self.tiers = CacheTiers(
            (FINGERPRINT, self.codec.layout), HotTier(1 << 30, stats), None, stats
        )

    def chain(self, tokens: Sequence[int]) -> PrefixChain:
        return PrefixChain.of(ChainRoot(FINGERPRINT), tokens, self.rules.block_tokens)

    def run(self, prompt: Sequence[int], count: int, chunk_tokens: int = 64) -> Warm:
        """Run one row from what is stored, and store what it leaves."""
        chain = self.chain(prompt)
        restored = self.tiers.restore(chain)
        fed = restored.tokens
        caches = make_prompt_cache(self.model)
        if restored.blocks:
            caches = self.codec.build(restored.blocks, fed)
        captures = list(plan_captures(self.codec.layout, self.rules, len(prompt), fed))
        while chunk := cut_chunk(
            fed, len(prompt) - 1, chunk_tokens, tuple(x.end_tokens for x in captures if x.snapshot)
        ):
            feed(self.model, caches, prompt[fed : fed + chunk])
            fed += chunk
            while captures and captures[0].end_tokens <= fed:
                self.keep(chain, caches, captures.pop(0))
        return Warm(go_on(self.model, caches, prompt[-1], count), restored.tokens, caches)

    def finish(self, prompt: Sequence[int], warm: Warm) -> None:
        """Store what a finished row holds; its last token was never fed."""
        self.keep_end([*prompt, *warm.said[:-1]], warm.caches)

    def keep_end(self, tokens: Sequence[int], caches: list[Any]) -> None:
        """Store all that a cache holds, which stands at the end of `tokens`."""
        size, chain = self.rules.block_tokens, self.chain(tokens)
        if self.codec.layout.needs_chain:
            for end in range(size, len(tokens), size):
                self.keep(chain, caches, Capture(end, snapshot=False))
        last = plan_capture_now(self.codec.layout, self.rules, len(tokens), finished=True)
        if last is not None:
            self.keep(chain, caches, last)

    def keep(self, chain: PrefixChain, caches: list[Any], capture: Capture) -> None:
        size, end = chain.block_tokens, capture.end_tokens
        start = (end - 1) // size * size
        if self.tiers.holds(chain, end, snapshot=capture.snapshot):
            return
        layers, tensors = self.codec.cut(caches, start, end, snapshot=capture.snapshot)
        assert self.tiers.keep(Block(self.tiers.header(chain, end, layers), tensors))

    def blocks(self, tokens: Sequence[int]) -> tuple[LoadedBlock, ...]:
        """Return what a prompt would be built from."""
        return self.tiers.restore(self.chain(tokens)).blocks
