"""Drafts against plain searches: the index, the plan, and rows that learn from what comes."""

from hypothesis import given
from hypothesis import strategies as st

from node_agent.engine.batching.drafts import (
    LONGEST_MATCH,
    MAX_DRAFT_TOKENS,
    SHORTEST_MATCH,
    WIDTHS,
    DraftBook,
    HitRates,
    NgramIndex,
    PassCosts,
    RowDrafts,
    count_accepted,
    plan_drafts,
)

# Few kinds of tokens, so that much repeats; few enough tokens that every place is compared.
TEXTS = st.lists(st.integers(0, 3), max_size=14)
PARTS = st.lists(TEXTS, max_size=4)
RATES = st.lists(st.tuples(st.integers(1, 40), st.booleans()), max_size=60)
PASSES = st.lists(st.tuples(st.integers(2, WIDTHS[-1]), st.floats(0, 100)), max_size=60)


def common_tail(tokens: list[int], end: int) -> int:
    """Return how many tokens up to `end` are those at the text's end."""
    count = 0
    while count <= end and tokens[end - count] == tokens[len(tokens) - 1 - count]:
        count += 1
    return min(count, LONGEST_MATCH)


@given(PARTS)
def test_the_index_finds_the_longest_run_and_among_equals_the_latest(parts: list[list[int]]):
    index, tokens = NgramIndex(), [token for part in parts for token in part]
    for part in parts:
        index.extend(part)
    assert len(index) == len(tokens)
    places = [(common_tail(tokens, end), end) for end in range(len(tokens) - 1)]
    # The index looks at the latest 16 places, which hold all that there can be of these.
    candidates = [one for one in places if one[0] >= SHORTEST_MATCH]
    found = index.find()
    if not candidates:
        assert found is None
        return
    assert found is not None
    assert (found.tokens, found.end) == max(candidates)


@given(PARTS, st.integers(0, 30))
def test_what_follows_is_what_followed_and_then_itself_again(parts, count):
    tokens = [token for part in parts for token in part]
    index = NgramIndex(tokens)
    match = index.find()
    if match is None:
        return
    followed = [*tokens[match.end + 1 :]]
    whole = (followed * (count + 1))[:count]
    assert index.following(match, count) == whole


@given(RATES, PASSES, st.integers(2, 40), st.integers(0, 40))
def test_a_plan_is_worth_more_than_a_plain_pass_and_within_its_limits(rated, passes, match, most):
    rates, costs = HitRates(), PassCosts()
    for tokens, hit in rated:
        rates = rates.noted(tokens, hit=hit)
    for width, ratio in passes:
        costs = costs.measured(width, ratio)
    assert all(ratio >= 1 for ratio in costs.ratios)
    assert list(costs.ratios) == sorted(costs.ratios)
    tokens = plan_drafts(rates, costs, match, most)
    assert 0 <= tokens <= min(most, MAX_DRAFT_TOKENS)
    assert 0 < rates.rate(match) < 1
    if tokens:
        chance, expected = 1.0, 1.0
        for at in range(tokens):
            chance *= rates.rate(match + at)
            expected += chance
        assert expected > costs.ratio(tokens + 1)


@given(PASSES)
def test_what_is_held_against_a_width_fades_until_it_is_tried_again(passes):
    costs = PassCosts()
    for width, ratio in passes:
        costs = costs.measured(width, ratio)
    for _ in range(500):
        costs = costs.eased()
    pairs = zip(costs.ratios, PassCosts().ratios, strict=True)
    assert all(ratio <= prior + 0.01 for ratio, prior in pairs)


@given(TEXTS, TEXTS, st.lists(st.booleans(), min_size=14, max_size=14))
def test_a_row_knows_the_same_however_its_tokens_come(prompt, said, ahead):
    """The next token may be known before it is fed, and several may come at once."""
    one, other = (RowDrafts(DraftBook(), prompt) for _ in range(2))
    told: list[int] = []
    for at, token in enumerate(said):
        one.note([*prompt, *said[: at + 1]])
        if ahead[at]:
            other.note([*prompt, *told], token)
        told.append(token)
    other.note([*prompt, *told])
    for most in (1, 4, MAX_DRAFT_TOKENS):
        assert one.plan(most) == other.plan(most)
        never_stops = [row.draft(most, lambda _token: False) for row in (one, other)]
        assert never_stops[0] == never_stops[1]


@given(TEXTS, TEXTS)
def test_what_is_accepted_is_the_beginning_that_agrees(draft, drawn):
    drawn = [*drawn, *draft, 0][: len(draft) + 1]
    count = count_accepted(draft, drawn)
    assert draft[:count] == drawn[:count]
    assert count == len(draft) or draft[count] != drawn[count]
