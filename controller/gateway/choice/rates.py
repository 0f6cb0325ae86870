"""How fast an endpoint is taken to be for one request, from what it has measured; pure.

Called by the scorers.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from controller.gateway.choice.demand import Demand
from controller.gateway.nodes.endpoints import EndpointKey, EndpointView
from manifests.sizing.shape import LayerKind, ModelShape

_UNMEASURED_PREFILL = 500.0
_UNMEASURED_DECODE = 20.0
# Copying a block is taken to be so many times faster than computing it until one was restored.
_UNMEASURED_RESTORE_RATIO = 20.0
# After so many requests that went elsewhere a rate is believed to be twice what was measured, and
# so on, up to the fastest. A node that is k times as slow is then tried once in so many x (k - 1)
# requests, which makes the mean request slower by a 32nd, whatever k is.
_PASSED_TO_DOUBLE = 32.0
_WHOLE_CONTEXT = (LayerKind.FULL, LayerKind.MLA)


@dataclass(frozen=True, slots=True)
class Rates:
    """Tokens per second of one engine, as measured or assumed."""

    prefill: float
    decode: float
    restore: float
    best_decode: float


def plan_rates(
    endpoints: Sequence[EndpointView],
    demand: Demand,
    cached: Mapping[EndpointKey, int],
    passed: Mapping[EndpointKey, int],
) -> tuple[Rates, ...]:
    """Return each endpoint's rates for a request, in the order given.

    An endpoint that has measured no rate yet is taken to be as fast as the fastest, so that it
    gets work and measures one. One that was measured in worse circumstances is given credit, up
    to the fastest: `passed` is how many requests went elsewhere since its last, and a rate of a
    bad moment must not keep the work away that would correct it.
    """
    prefill = max((item.prefill_tokens_per_second for item in endpoints), default=0.0)
    decode = max((item.decode_tokens_per_second for item in endpoints), default=0.0)
    best_prefill, best_decode = prefill or _UNMEASURED_PREFILL, decode or _UNMEASURED_DECODE
    found = []
    for item in endpoints:
        depth = (demand.prompt_tokens + cached.get(item.key, 0)) / 2
        due = 1 + passed.get(item.key, 0) / _PASSED_TO_DOUBLE
        shallow = depth_ratio(item, depth) * due
        rate = believe_rate(item.prefill_tokens_per_second, best_prefill, shallow)
        restore = item.restore_tokens_per_second or rate * _UNMEASURED_RESTORE_RATIO
        found.append(
            Rates(
                prefill=rate,
                decode=believe_rate(item.decode_tokens_per_second, best_decode, due),
                # A restore that was slow once does not make a warm node worse than a cold one.
                restore=max(restore, rate),
                best_decode=best_decode,
            )
        )
    return tuple(found)


def believe_rate(measured: float, best: float, credit_ratio: float) -> float:
    """Return the rate to reckon with: as measured, with credit up to the best one measured."""
    if measured <= 0:
        return best
    return max(measured, min(best, measured * credit_ratio))


def depth_ratio(endpoint: EndpointView, context_tokens: float) -> float:
    """Return by how much prefill at this depth is faster than where it was measured, from 1.

    A node that just fed a very long prompt is not slow for a short one. The other way round nothing
    is known: a short prompt's rate is low for reasons of its own.
    """
    measured_at = endpoint.prefill_context_tokens
    if endpoint.shape is None or measured_at is None:
        return 1.0
    even = even_depth_tokens(endpoint.shape)
    ratio = (1 + measured_at / even) / (1 + context_tokens / even)
    return max(1.0, ratio)


@lru_cache(maxsize=256)
def even_depth_tokens(shape: ModelShape) -> float:
    """Return the context over which attention costs as much as all the rest of a token does."""
    whole = sum(item.layers for item in shape.groups if item.kind in _WHOLE_CONTEXT)
    layers = sum(item.layers for item in shape.groups)
    heads = shape.attention_heads
    head_dim = shape.head_dim or shape.hidden_size // max(1, heads)
    # Multiplications: keys and values with the query; projections and the gated block.
    attention = whole * 2 * heads * head_dim
    width = 2 * (heads + shape.kv_heads) * head_dim + 3 * shape.intermediate_size
    return layers * shape.hidden_size * width / attention if attention else math.inf
