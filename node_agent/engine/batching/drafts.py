"""Drafts of what a row says next, looked up in what it has read and said (prompt lookup).

Owns the index of a row's own tokens, how often its proposals came true, what wider passes cost,
and how many tokens are worth drafting. Pure: no array, no clock. A draft is a guess that one pass
over the model proves or refuses, so nothing here can change what a row says. Called by
`decode_group.py`.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from node_agent.engine.rows import DraftTally

# Passes are this wide, the token that is known included; a few kinds, so that each is measured.
WIDTHS = (2, 3, 5, 8, 16)
MAX_DRAFT_TOKENS = WIDTHS[-1] - 1

# The fewest tokens that must have come in the same order before, and the most that are compared.
SHORTEST_MATCH = 2
LONGEST_MATCH = 32
# So many earlier places are compared, the latest first.
MOST_CANDIDATES = 16
_BUCKETS = 1 << 15

# Share of proposals that come true, by how many tokens match, before a row has shown its own.
# Measured with SmolLM2-135M on answers of its own and on edits of code and prose, 2026-11-28.
_MATCHES = (2, 3, 4, 6, 10)
_PRIOR_HITS = (0.4, 0.5, 0.6, 0.7, 0.85)
# What was assumed weighs as much as so many proposals; older ones count less and less.
_PRIOR_WEIGHT = 4.0
_FADING = 0.98

# What a pass of each width takes, as a share of one for a single token: dearer than was measured
# on 2 x86 cores (1.1, 1.2, 1.5, 1.6, 2.0 behind 500 tokens), so that a first pass is a safe bet.
_PRIOR_RATIOS = (1.2, 1.4, 1.7, 2.2, 3.2)
COST_LEARNING_RATE = 0.2
_PLAIN_LEARNING_RATE = 0.2
# One pass that was held up must not speak for all that follow.
_MOST_OVER_PRIOR = 3.0
# A width that is not used is not measured either; what is held against it fades.
_EASING = 0.02

# Drafts must promise this much: without them one pass is begun before the last has ended.
_LEAST_GAIN = 1.05


@dataclass(frozen=True, slots=True)
class Match:
    """The last `tokens` tokens stood before, up to and including place `end`."""

    end: int
    tokens: int


class NgramIndex:
    """Where each pair of tokens stood; 8 bytes a token and 128 KiB.

    Pairs that share a bucket are linked from the last to the first, and compared when looked up.
    """

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        self._tokens = array("i")
        self._latest = array("i", [-1]) * _BUCKETS
        self._before = array("i")
        self.extend(tokens)

    def __len__(self) -> int:
        return len(self._tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Add tokens at the end."""
        if not tokens:
            return
        at = len(self._tokens)
        if at == 0:
            self._before.append(-1)
            at, pairs = 1, pairwise(tokens)
        else:
            pairs = pairwise([self._tokens[-1], *tokens])
        self._tokens.extend(tokens)
        latest, before = self._latest, self._before
        for place, (one, two) in enumerate(pairs, at):
            bucket = (one * 40503 + two * 10007) % _BUCKETS
            before.append(latest[bucket])
            latest[bucket] = place

    def find(self) -> Match | None:
        """Return the longest earlier run of the last tokens, among equals the latest."""
        best = None
        place = self._before[-1] if self._before else -1
        for _ in range(MOST_CANDIDATES):
            if place < 0:
                break
            tokens = self._common_tokens(place)
            if tokens >= SHORTEST_MATCH and (best is None or tokens > best.tokens):
                best = Match(place, tokens)
                if tokens == LONGEST_MATCH:
                    break
            place = self._before[place]
        return best

    def following(self, match: Match, count: int) -> list[int]:
        """Return the tokens that followed a match, and follow again if the run goes on.

        A match that reaches the end repeats itself.
        """
        known, start = len(self._tokens), match.end + 1
        found: list[int] = []
        for place in range(start, start + count):
            found.append(self._tokens[place] if place < known else found[place - known])
        return found

    def _common_tokens(self, end: int) -> int:
        tokens, last = self._tokens, len(self._tokens) - 1
        most = min(LONGEST_MATCH, end + 1)
        count = 0
        while count < most and tokens[end - count] == tokens[last - count]:
            count += 1
        return count


@dataclass(frozen=True, slots=True)
class HitRates:
    """How often the token that a match proposed was the one that came, by the match's length."""

    hits: tuple[float, ...] = tuple(rate * _PRIOR_WEIGHT for rate in _PRIOR_HITS)
    tries: tuple[float, ...] = (_PRIOR_WEIGHT,) * len(_MATCHES)

    def rate(self, match_tokens: int) -> float:
        """Return the share of proposals that come true behind a match of so many tokens."""
        at = _place(match_tokens)
        return self.hits[at] / self.tries[at]

    def noted(self, match_tokens: int, *, hit: bool) -> "HitRates":
        """Return the rates after one more proposal."""
        at = _place(match_tokens)
        hits, tries = list(self.hits), list(self.tries)
        hits[at] = hits[at] * _FADING + hit
        tries[at] = tries[at] * _FADING + 1
        return HitRates(tuple(hits), tuple(tries))


@dataclass(frozen=True, slots=True)
class PassCosts:
    """What a pass of each of `WIDTHS` takes, as a share of one for a single token."""

    ratios: tuple[float, ...] = _PRIOR_RATIOS

    def ratio(self, width: int) -> float:
        """Return what a pass takes that is at most as wide as the widest."""
        return self.ratios[_width_place(width)]

    def measured(self, width: int, ratio: float) -> "PassCosts":
        """Return the costs after a pass that took so much; it never takes less than a narrow one.

        Wider passes cost no less and narrower ones no more than what was learned.
        """
        at = _width_place(width)
        ratio = max(1.0, min(ratio, _MOST_OVER_PRIOR * _PRIOR_RATIOS[at]))
        learned = self.ratios[at] + COST_LEARNING_RATE * (ratio - self.ratios[at])
        return PassCosts(
            tuple(
                min(known, learned)
                if place < at
                else learned
                if place == at
                else max(known, learned)
                for place, known in enumerate(self.ratios)
            )
        )

    def eased(self) -> "PassCosts":
        """Return the costs after drafts were not worth it, so that this is tried again some day."""
        return PassCosts(
            tuple(
                known - _EASING * max(0.0, known - prior)
                for known, prior in zip(self.ratios, _PRIOR_RATIOS, strict=True)
            )
        )


def plan_drafts(rates: HitRates, costs: PassCosts, match_tokens: int, most_tokens: int) -> int:
    """Return how many tokens to draft behind a match: those that give most tokens a second.

    0 when none do. The chance of each is that of all before it and its own, behind a match that
    has grown by them.
    """
    best_tokens, best_gain = 0, _LEAST_GAIN
    expected, chance = 1.0, 1.0
    for tokens in range(1, min(most_tokens, MAX_DRAFT_TOKENS) + 1):
        chance *= rates.rate(match_tokens + tokens - 1)
        expected += chance
        if tokens + 1 in WIDTHS or tokens == most_tokens:
            gain = expected / costs.ratio(tokens + 1)
            if gain > best_gain:
                best_tokens, best_gain = tokens, gain
    return best_tokens


def count_accepted(draft: Sequence[int], drawn: Sequence[int]) -> int:
    """Return how many drafted tokens are those that were drawn in their place."""
    for at, token in enumerate(draft):
        if token != drawn[at]:
            return at
    return len(draft)


@dataclass(slots=True)
class DraftBook:
    """What all rows of an engine share: the costs of passes, and what came of the drafts."""

    most_tokens: int = MAX_DRAFT_TOKENS
    costs: PassCosts = field(default_factory=PassCosts)
    tally: DraftTally = field(default_factory=DraftTally)


class RowDrafts:
    """The drafts of one row that decodes alone.

    What a match proposes is compared with each token that comes, drafted or not, so rows learn
    without a pass whether drafts would pay.
    """

    def __init__(self, book: DraftBook, tokens: Sequence[int]) -> None:
        """Start with the tokens of the row so far."""
        self._book = book
        self._index = NgramIndex(tokens)
        self._match = self._index.find()
        self._rates = HitRates()
        self._plain_seconds = 0.0

    def note(self, tokens: Sequence[int], next_token: int | None = None) -> None:
        """Take in all tokens of the row, of which some are known, and the next one if it is."""
        for token in tokens[len(self._index) :]:
            self._add(token)
        if next_token is not None and len(self._index) == len(tokens):
            self._add(next_token)

    def _add(self, token: int) -> None:
        index, match = self._index, self._match
        hit = False
        if match is not None:
            (proposed,) = index.following(match, 1)
            hit = proposed == token
            self._rates = self._rates.noted(match.tokens, hit=hit)
        index.extend((token,))
        if match is not None and hit:
            self._match = Match(match.end + 1, min(match.tokens + 1, LONGEST_MATCH))
        else:
            self._match = index.find()

    def plan(self, most_tokens: int) -> int:
        """Return how many tokens to draft now; 0 for none."""
        match, book = self._match, self._book
        most_tokens = min(most_tokens, book.most_tokens)
        if match is None or most_tokens <= 0:
            return 0
        tokens = plan_drafts(self._rates, book.costs, match.tokens, most_tokens)
        if not tokens and plan_drafts(self._rates, PassCosts(), match.tokens, most_tokens):
            book.costs = book.costs.eased()
        return tokens

    def draft(self, tokens: int, stops_with: Callable[[int], bool]) -> list[int]:
        """Return so many tokens that may follow, up to one that would end the row."""
        if self._match is None:
            return []
        draft = self._index.following(self._match, tokens)
        for at, token in enumerate(draft):
            if stops_with(token):
                return draft[:at]
        return draft

    def note_plain(self, seconds: float) -> None:
        """Note what a pass for a single token took."""
        known = self._plain_seconds or seconds
        self._plain_seconds = known + _PLAIN_LEARNING_RATE * (seconds - known)

    def note_verified(self, drafted: int, accepted: int, seconds: float) -> None:
        """Note a pass over drafted tokens, and how many came true."""
        book = self._book
        book.tally.drafted_tokens += drafted
        book.tally.accepted_tokens += accepted
        if self._plain_seconds:
            book.costs = book.costs.measured(drafted + 1, seconds / self._plain_seconds)


class PlainSpans:
    """How long passes for a single token take, from when each step that waited for one ended.

    Each is begun in the step before it is waited for, so it takes from that step's end to the
    next one's, if nothing else was run between.
    """

    _MOST_BETWEEN = 0.1

    def __init__(self) -> None:
        self._ended_seconds: float | None = None

    def note(self, began_seconds: float, ended_seconds: float) -> float | None:
        """Note a step that began the next pass; return what the pass it waited for took."""
        last, self._ended_seconds = self._ended_seconds, ended_seconds
        if last is None:
            return None
        span = ended_seconds - last
        return span if began_seconds - last <= self._MOST_BETWEEN * span else None

    def cut(self) -> None:
        """Note that no pass has been begun."""
        self._ended_seconds = None


def _place(match_tokens: int) -> int:
    at = len(_MATCHES) - 1
    while at and match_tokens < _MATCHES[at]:
        at -= 1
    return at


def _width_place(width: int) -> int:
    return next((at for at, most in enumerate(WIDTHS) if width <= most), len(WIDTHS) - 1)
