"""How one row picks its token: penalties on logits, then a sampler on log-probabilities.

Owns the arithmetic of SamplingParams on MLX arrays. Order: logit bias, repetition, presence and
frequency penalties; then temperature, min-p, top-k, top-p, draw. Repetition looks at prompt
and output, presence and frequency at output only, as vLLM does. At least one token survives
every filter. Called on the MLX thread.
"""

from collections.abc import Callable

import mlx.core as mx
from mlx_lm.sample_utils import greedy_sampler

from node_agent.engine.messages import SamplingParams

Sampler = Callable[[mx.array], mx.array]
Processor = Callable[[mx.array, mx.array], mx.array]

# Below this a float32 division overflows; the limit of sampling at T -> 0 is greedy anyway.
GREEDY_BELOW_TEMPERATURE = 1e-5
_WORD = 0xFFFFFFFF


def filter_logprobs(logprobs: mx.array, params: SamplingParams) -> mx.array:
    """Return tempered log-probabilities with the filtered tokens at minus infinity.

    Shapes: (rows, vocabulary) in and out, float32.
    """
    scaled = logprobs.astype(mx.float32) / params.temperature
    if params.min_p > 0:
        floor = mx.max(scaled, axis=-1, keepdims=True) + mx.log(mx.array(params.min_p))
        scaled = mx.where(scaled < floor, -mx.inf, scaled)
    vocab_size = scaled.shape[-1]
    if 0 < params.top_k < vocab_size:
        ranks = mx.argsort(mx.argsort(-scaled, axis=-1), axis=-1)
        scaled = mx.where(ranks >= params.top_k, -mx.inf, scaled)
    if params.top_p < 1:
        scaled = _keep_top_p(scaled, params.top_p)
    return scaled


def _keep_top_p(scaled: mx.array, top_p: float) -> mx.array:
    """Keep the smallest set of best tokens whose probability reaches `top_p`."""
    order = mx.argsort(-scaled, axis=-1)
    probabilities = mx.softmax(mx.take_along_axis(scaled, order, axis=-1), axis=-1)
    before = mx.cumsum(probabilities, axis=-1) - probabilities
    # The best token is always kept, whatever rounding makes of `before`.
    first = mx.arange(scaled.shape[-1]) == 0
    kept_in_order = mx.logical_or(before < top_p, first)
    kept = mx.put_along_axis(mx.zeros(scaled.shape, dtype=mx.bool_), order, kept_in_order, axis=-1)
    return mx.where(kept, scaled, -mx.inf)


def seed_words(seed: int) -> tuple[int, int]:
    """Return two well-mixed 32-bit words of a seed (splitmix64), so near seeds share no draws.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.
    """
    mixed = (seed + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    mixed ^= mixed >> 31
    return mixed >> 32, mixed & _WORD


class SeededSampler:
    """A sampler with its own key per token, so a row draws alike alone and in any batch."""

    def __init__(self, params: SamplingParams, seed: int, drawn_tokens: int = 0) -> None:
        """Go on after `drawn_tokens`: each token takes one draw, and its key is its place."""
        self._params = params
        self._high, self._low = seed_words(seed)
        self._drawn_tokens = drawn_tokens

    def __call__(self, logprobs: mx.array) -> mx.array:
        """Draw one token. Shapes: (1, vocabulary) -> (1,)."""
        key = mx.array([self._high, (self._low + self._drawn_tokens) & _WORD], dtype=mx.uint32)
        self._drawn_tokens += 1
        return mx.random.categorical(filter_logprobs(logprobs, self._params), key=key)


class Samplers:
    """Hands out samplers; rows that sample alike share one object.

    mlx-lm samples a batch in one call when every row has the same sampler object, so greedy
    rows share one, and so do unseeded rows with equal settings.
    """

    MAX_SHARED = 256

    def __init__(self) -> None:
        self._shared: dict[tuple[float, float, int, float], Sampler] = {}

    def sampler_for(self, params: SamplingParams, drawn_tokens: int = 0) -> Sampler:
        """Return the sampler of a row that has so many tokens of its answer already."""
        if params.temperature < GREEDY_BELOW_TEMPERATURE:
            return greedy_sampler  # type: ignore[no-any-return]
        if params.seed is not None:
            return SeededSampler(params, params.seed, drawn_tokens)
        key = (params.temperature, params.top_p, params.top_k, params.min_p)
        if key not in self._shared:
            if len(self._shared) >= self.MAX_SHARED:
                self._shared.clear()
            self._shared[key] = lambda logprobs: mx.random.categorical(
                filter_logprobs(logprobs, params)
            )
        return self._shared[key]


def is_filtered(params: SamplingParams) -> bool:
    """Return whether a row's logits go through filters, penalties or a bias. Pure."""
    if processors_for(params, 0):
        return True
    drawn = params.temperature >= GREEDY_BELOW_TEMPERATURE
    return drawn and (params.top_p < 1 or params.top_k > 0 or params.min_p > 0)


def processors_for(params: SamplingParams, prompt_tokens: int) -> list[Processor]:
    """Return the logits processors of a row; empty when it has no penalty and no bias.

    What follows the first `prompt_tokens` is output.
    Shapes: each takes (tokens so far,) and (1, vocabulary) and returns (1, vocabulary).
    """
    processors: list[Processor] = []
    if params.logit_bias:
        processors.append(_bias(params.logit_bias))
    if params.repetition_penalty != 1:
        processors.append(_repetition(params.repetition_penalty))
    if params.presence_penalty or params.frequency_penalty:
        processors.append(
            _presence_frequency(params.presence_penalty, params.frequency_penalty, prompt_tokens)
        )
    return processors


def _bias(logit_bias: dict[int, float]) -> Processor:
    def apply(_tokens: mx.array, logits: mx.array) -> mx.array:
        known = {token: bias for token, bias in logit_bias.items() if 0 <= token < logits.shape[-1]}
        if not known:
            return logits
        where = mx.array(list(known), dtype=mx.int32)
        return logits.at[:, where].add(mx.array(list(known.values()), dtype=logits.dtype))

    return apply


def _count(tokens: mx.array, vocab_size: int) -> mx.array:
    """Return how often each token id occurs. Shapes: (n,) -> (1, vocabulary)."""
    return mx.zeros((1, vocab_size), dtype=mx.float32).at[:, tokens].add(1)


def _repetition(penalty: float) -> Processor:
    """Divide positive and multiply negative logits of every token seen (CTRL, 1909.05858)."""

    def apply(tokens: mx.array, logits: mx.array) -> mx.array:
        seen = _count(tokens, logits.shape[-1]) > 0
        punished = mx.where(logits < 0, logits * penalty, logits / penalty)
        return mx.where(seen, punished, logits)

    return apply


def _presence_frequency(presence: float, frequency: float, prompt_tokens: int) -> Processor:
    def apply(tokens: mx.array, logits: mx.array) -> mx.array:
        output = tokens[prompt_tokens:]
        if output.size == 0:
            return logits
        counts = _count(output, logits.shape[-1])
        lowered = logits - frequency * counts - presence * (counts > 0)
        return lowered.astype(logits.dtype)

    return apply
