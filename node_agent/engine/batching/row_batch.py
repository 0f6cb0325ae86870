"""mlx-lm's batch of decoding rows, with what it does not do itself.

Owns the reach into GenerationBatch, but for the places that rows leave (`seats.py`): a row that
starts with its last token fed or unfed, what is drawn already, a row's cache shown without copying
it, and one pass over several tokens of a row that is alone. Called by `decode_group.py` on the MLX
thread.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import mlx.core as mx
from mlx import nn
from mlx_lm.generate import GenerationBatch, StopSequences
from mlx_lm.models.cache import BatchKVCache, CacheList, KVCache, TokenBuffer
from mlx_lm.sample_utils import greedy_sampler

from node_agent.engine.batching.chunking import STEP_TOKENS
from node_agent.engine.batching.drafts import count_accepted
from node_agent.engine.batching.sampling import Processor, Sampler
from node_agent.engine.batching.seats import SeatedBatch


@dataclass(slots=True)
class Newcomer:
    """A row whose prompt is fed, all but its last token, or that one too.

    `logits` are then what the last token said. Shapes: (1, 1, vocabulary). It ends with any of
    `stop_token_ids`.
    """

    uid: int
    prompt: Sequence[int]
    max_tokens: int
    sampler: Sampler
    stop_token_ids: frozenset[int] = frozenset()
    processors: list[Processor] = field(default_factory=list)
    logits: mx.array | None = None

    @property
    def stops(self) -> StopSequences:
        """What ends it, as mlx-lm wants it."""
        return StopSequences([[token] for token in sorted(self.stop_token_ids)])


class RowBatch(SeatedBatch):
    """Rows decoded together; one step ahead of what they have said."""

    @classmethod
    def fed(cls, model: nn.Module, newcomer: Newcomer, cache: list[Any]) -> "RowBatch":
        """Return a batch of one row, whose last token was fed; its first token is drawn."""
        prompt, logits = list(newcomer.prompt), newcomer.logits
        batch = cls(
            # The first step would feed the last token.
            lambda _inputs, cache: logits,  # noqa: ARG005
            [newcomer.uid],
            mx.array(prompt[-1:]),
            cache,
            [prompt[:-1]],
            [newcomer.sampler],
            greedy_sampler,
            [tuple(newcomer.processors)],
            [newcomer.stops],
            [newcomer.max_tokens],
        )
        batch.model = model
        return batch

    @classmethod
    def unfed(cls, model: nn.Module, newcomer: Newcomer, cache: list[Any]) -> "RowBatch":
        """Return a batch of one row, whose last token the next step feeds as if it were drawn."""
        batch: RowBatch = cls.empty(model, greedy_sampler)
        batch.begin(newcomer, cache)
        return batch

    def begin(self, newcomer: Newcomer, cache: list[Any]) -> None:
        """Take a row in whose prompt is fed but for its last token. The batch is empty."""
        prompt = list(newcomer.prompt)
        self.uids, self.prompt_cache, self.tokens = [newcomer.uid], cache, [prompt[:-1]]
        self.samplers, self.max_tokens = [newcomer.sampler], [newcomer.max_tokens]
        self.logits_processors = [tuple(newcomer.processors)]
        self.stop_sequences = [newcomer.stops]
        self._next_tokens, self._next_logprobs = mx.array(prompt[-1:]), [mx.array(0.0)]
        self._token_context = [TokenBuffer(prompt[:-1])]
        self._num_tokens = [-1]
        self._matchers = [_DeafOnce(newcomer.stops)]

    def next_of(self, uids: Container[int]) -> list[GenerationBatch.Response]:
        """Return the tokens drawn for these rows that do not end them; nothing is under way."""
        tokens: list[int] = self._next_tokens.tolist()  # type: ignore[assignment]
        drawn = zip(self.uids, tokens, self._next_logprobs, strict=True)
        return [
            self.Response(uid, token, logprobs, None, None, None)
            for at, (uid, token, logprobs) in enumerate(drawn)
            if uid in uids and not self.ends_with(token, at)
        ]

    def ends_with(self, token: int, at: int = 0) -> bool:
        """Return whether a row ends with this token, which is the next it says."""
        return self._num_tokens[at] + 1 >= self.max_tokens[at] or self.stops_with(token, at)

    def stops_with(self, token: int, at: int = 0) -> bool:
        """Return whether this token is one that ends a row wherever it comes."""
        return bool(self.stop_sequences[at].matcher().advance(token))

    def next_token(self) -> int:
        """Wait for the token that the only row says next, and return it."""
        return cast(int, self._next_tokens.item())

    def most_drafts(self) -> int:
        """Return how many drafts may follow the next token of the only row.

        The last token it may say is left to `next`, which ends it, and buffers grow by whole
        steps from step ends.
        """
        held_tokens = len(self.tokens[0])
        left_tokens = self.max_tokens[0] - self._num_tokens[0] - 2
        return min(left_tokens, STEP_TOKENS - held_tokens % STEP_TOKENS - 1)

    def verify(self, draft: Sequence[int]) -> list[GenerationBatch.Response]:
        """Feed the only row's next token and a draft; return that token and what came true.

        Each place draws as it would without a draft, from the logits behind what is before it,
        and what follows the first that differs is taken back. No token of the draft may end the
        row. The token after those returned is drawn, and nothing is under way.
        """
        held = self.tokens[0]
        fed = [self.next_token(), *draft]
        logits = self.model(mx.array([fed]), cache=self.prompt_cache)[0]
        drawn, logprobs = self._draw(fed, logits)
        accepted = len(drawn) - 1
        if refused := len(draft) - accepted:
            for layer in self.prompt_cache:
                layer.trim(refused)
        said = fed[: accepted + 1]
        held += said
        self._num_tokens[0] += len(said)
        for token in said:
            self._matchers[0].advance(token)
        if self.logits_processors[0]:
            self._token_context = [TokenBuffer(held)]
        behind = [self._next_logprobs[0], *logprobs]
        self._next_tokens = mx.array(drawn[-1:], dtype=mx.uint32)
        self._next_logprobs = behind[-1:]
        mx.eval(self._next_tokens, self._next_logprobs)
        return [
            self.Response(self.uids[0], token, one, None, None, None)
            for token, one in zip(said, behind[:-1], strict=True)
        ]

    def _draw(self, fed: list[int], logits: mx.array) -> tuple[list[int], list[mx.array]]:
        """Return what the only row draws behind each token fed, up to the first that differs.

        A greedy row without processors draws all at once. For others each place is processed,
        filtered and drawn when the one before has agreed: a seeded row draws no more than it
        says, and what filters take is taken once.
        """
        sampler, processors = self.samplers[0], self.logits_processors[0]
        if sampler is greedy_sampler and not processors:
            logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
            drawn = cast(list[int], sampler(logprobs).tolist())
            count = count_accepted(fed[1:], drawn) + 1
            return drawn[:count], list(logprobs[:count])
        drawn, kept = [], []
        context = mx.array([*self.tokens[0], *fed] if processors else [], dtype=mx.int32)
        for at, expected in enumerate([*fed[1:], None]):
            one = logits[at : at + 1]
            for process in processors:
                one = process(context[: len(self.tokens[0]) + at + 1], one)
            one = one - mx.logsumexp(one, axis=-1, keepdims=True)
            drawn.append(cast(int, sampler(one).item()))
            kept.append(one[0])
            if drawn[-1] != expected:
                break
        return drawn, kept

    def extract_cache(self, idx: int) -> list[Any]:
        """Return one row's cache."""
        return [view_row(layer, idx) for layer in self.prompt_cache]


class _DeafOnce:
    """A row's stop matcher that does not hear the first token: it is the prompt's last."""

    def __init__(self, stops: StopSequences) -> None:
        self._matcher, self._deaf = stops.matcher(), True

    def advance(self, token: int) -> bool:
        """Return whether the row stops with this token."""
        if self._deaf:
            self._deaf = False
            return False
        return bool(self._matcher.advance(token))


def view_row(cache: Any, at: int) -> Any:
    """Return one row of one layer. Plain KV stays where it is; the rest is copied, when used."""
    if isinstance(cache, CacheList):
        return CacheList(*(view_row(member, at) for member in cache.caches))
    if type(cache) is not BatchKVCache or cache.keys is None:
        return cache.extract(at)
    keys, values, _, left_padding, end = cache.state
    start = left_padding[at].item()
    row = KVCache()
    place = (slice(at, at + 1), slice(None), slice(start, end))
    row.state = (keys[place], values[place], end - start)
    return row
