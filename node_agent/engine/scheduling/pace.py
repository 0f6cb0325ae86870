"""How many prompt tokens a step may feed, so that rows being decoded keep their pace.

Pure: what was measured goes in, a number of tokens comes out; no clock, no array. The feeding
line keeps one `Pace` and asks it before every chunk. Memory is not looked at here: the gate may
make a chunk smaller still.
"""

from dataclasses import dataclass, field, replace

from node_agent.engine.batching.chunking import STEP_TOKENS, even_part

# No forward pass takes less; a clock that says so tells nothing.
SHORTEST_SECONDS = 1e-6

# How long one step feeds while rows decode. What is left of a second is for the decode step
# itself and for chunks that turn out slower than those before.
FEED_SECONDS = 0.35

# After a step has fed, rows that decode have so large a part of that time to themselves. Their
# streams run on, and prompts that come together are through one after another: their rows then end
# one after another too, and the next prompts, one for each end, need not wait for each other.
DECODE_SHARE = 0.5

# Decode steps differ by what else the machine does, so each moves the average only a little. A
# chunk moves it more: the next one must be narrower at once. Not by all it was slower, though:
# on a busy machine the slowest chunk of all would set the width, and narrow chunks cost most.
DECODE_LEARNING_RATE = 0.1
CHUNK_LEARNING_RATE = 0.5

# The narrowest chunk, whatever the clock says: a prompt always goes on. Narrower ones also say
# little about wide ones, so nothing is learned from them.
MIN_CHUNK_TOKENS = 8

# A chunk may be this much wider than the last one: kernels change with the width.
GROWTH = 2

# A prompt's last part may be this much wider than fits rather than become two: the second would
# cost one more pass over all weights, and one more of the steps that the others wait for. Less
# where its own tokens make the context much longer, for each is dearer then.
LAST_STRETCH = 2.0


@dataclass(frozen=True, slots=True)
class TokenCost:
    """What a token of a chunk takes besides the pass itself, last measured at such a context.

    That is the middle one of the chunk's.
    """

    context_tokens: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast this engine feeds and decodes, as measured so far. Units: seconds, tokens.

    A pass reads all weights, however narrow it is: that much, a decode step tells. What each token
    of a chunk costs besides is known by octave of the context: attention makes it dearer the
    longer the context is, so a short prompt must not speak for a long one.
    """

    token_costs: dict[int, TokenCost] = field(default_factory=dict)
    decode_seconds: float = 0.0
    last_chunk_tokens: int = 0

    @property
    def feed_seconds(self) -> float:
        """How long one step may feed while rows decode.

        A decode step is still under way when the chunk starts, and is waited for within it. A
        slow one reads the weights slowly, and so does the chunk: with less time than the step
        itself takes, feeding would starve.
        """
        return self.decode_seconds + max(FEED_SECONDS, self.decode_seconds)

    def decoded(self, seconds: float) -> "Pace":
        """Return the pace after one decode step with no chunk before it."""
        average = _move(self.decode_seconds, seconds, DECODE_LEARNING_RATE)
        return replace(self, decode_seconds=average)

    def fed(
        self, held_tokens: int, chunk_tokens: int, seconds: float, *, rest: bool = False
    ) -> "Pace":
        """Return the pace after one chunk behind `held_tokens`; a narrow one teaches nothing.

        Nor does the `rest` of a prompt, far narrower than the time would have allowed.
        """
        narrow = chunk_tokens < MIN_CHUNK_TOKENS
        short = rest and chunk_tokens * GROWTH <= self.last_chunk_tokens
        if narrow or short or seconds < SHORTEST_SECONDS:
            return self
        octave = _octave(held_tokens)
        # Steps of many rows take longer than the weights alone: half is the tokens' at least.
        measured = max(seconds - self.decode_seconds, seconds / 2) / chunk_tokens
        known = self.token_costs.get(octave)
        before = measured if known is None else known.seconds
        middle_tokens = held_tokens + chunk_tokens / 2
        learned = TokenCost(middle_tokens, _move(before, measured, CHUNK_LEARNING_RATE))
        return replace(
            self,
            token_costs={**self.token_costs, octave: learned},
            last_chunk_tokens=chunk_tokens,
        )

    def tokens_in(self, seconds: float, held_tokens: int) -> int:
        """Return how many tokens behind `held_tokens` fit in the time; 0 when none do.

        Before anything was measured, it is as many as the narrowest chunk has.
        """
        if seconds <= 0:
            return 0
        token_seconds = self._expect(held_tokens)
        if token_seconds is None:
            return MIN_CHUNK_TOKENS
        widest = GROWTH * max(MIN_CHUNK_TOKENS, self.last_chunk_tokens)
        return int(min(widest, max(0.0, seconds - self.decode_seconds) / token_seconds))

    def whole_in(self, seconds: float, held_tokens: int) -> int:
        """Return how many tokens chunks like the last one feed behind `held_tokens` in the time.

        0 before anything was measured.
        """
        token_seconds = self._expect(held_tokens)
        if token_seconds is None:
            return 0
        share_seconds = self.decode_seconds / max(MIN_CHUNK_TOKENS, self.last_chunk_tokens)
        return int(seconds / (token_seconds + share_seconds))

    def _expect(self, held_tokens: int) -> float | None:
        """Return what a token costs at a context, from the nearest one that was measured.

        Nothing grows faster than with the context itself, so that bounds longer contexts; and
        a longer context's cost bounds a shorter one's.
        """
        if not self.token_costs:
            return None
        octave = _octave(held_tokens)
        below = max((one for one in self.token_costs if one <= octave), default=None)
        if below is None:
            return self.token_costs[min(self.token_costs)].seconds
        known = self.token_costs[below]
        if below == octave:
            return known.seconds
        # Where a chunk ends that is as wide as one may become after the last.
        end_tokens = held_tokens + GROWTH * self.last_chunk_tokens
        return known.seconds * end_tokens / max(known.context_tokens, STEP_TOKENS)


def plan_chunk_limit(
    pace: Pace, *, limit_tokens: int, held_tokens: int, left_tokens: int, seconds: float
) -> int:
    """Return how wide the next chunk of a row may be: whole chunks of about the same width.

    Never above `limit_tokens`, and never below the narrowest chunk unless that is. Chunks end
    at the caches' step boundaries anyway; equal parts up to there waste no time on a rest.
    Units: tokens; `seconds` is the time there is.
    """
    measured_tokens = pace.tokens_in(seconds, held_tokens)
    fitting_tokens = max(MIN_CHUNK_TOKENS, measured_tokens)
    if fitting_tokens >= limit_tokens:
        return limit_tokens
    context_tokens = max(held_tokens, STEP_TOKENS)
    stretch = LAST_STRETCH * context_tokens / (context_tokens + left_tokens)
    if left_tokens <= min(limit_tokens, int(measured_tokens * stretch)):
        return max(left_tokens, fitting_tokens)
    way_tokens = min(left_tokens, STEP_TOKENS - held_tokens % STEP_TOKENS)
    if way_tokens <= fitting_tokens:
        return fitting_tokens
    part_tokens = even_part(way_tokens, fitting_tokens)
    return max(min(MIN_CHUNK_TOKENS, limit_tokens), part_tokens)


def _octave(held_tokens: int) -> int:
    """Short contexts are all alike: what they add to the cost of a token is small."""
    return max(held_tokens, STEP_TOKENS).bit_length()


def _move(known: float, measured: float, rate: float) -> float:
    return known + rate * (measured - known)
