"""When drafts are made, how many, and when not."""

from node_agent.engine.batching.drafts import (
    MAX_DRAFT_TOKENS,
    DraftBook,
    HitRates,
    NgramIndex,
    PassCosts,
    PlainSpans,
    RowDrafts,
    plan_drafts,
)

TEXT = list(range(100, 140))


def nothing_stops(_token: int) -> bool:
    return False


def test_a_text_that_begins_again_is_drafted_on_and_a_new_one_is_not():
    row = RowDrafts(DraftBook(), [*TEXT, 7, 8, *TEXT[:4]])
    tokens = row.plan(MAX_DRAFT_TOKENS)
    assert tokens > 0
    assert row.draft(tokens, nothing_stops) == TEXT[4 : 4 + tokens]
    assert RowDrafts(DraftBook(), TEXT).plan(MAX_DRAFT_TOKENS) == 0
    assert RowDrafts(DraftBook(), [5]).plan(MAX_DRAFT_TOKENS) == 0


def test_a_run_that_goes_on_is_drafted_further_each_time():
    row, told = RowDrafts(DraftBook(), [*TEXT, 7, *TEXT[:3]]), [*TEXT, 7, *TEXT[:3]]
    widths = []
    for token in TEXT[3:30]:
        widths.append(row.plan(MAX_DRAFT_TOKENS))
        told.append(token)
        row.note(told)
    assert widths == sorted(widths)
    assert widths[0] < widths[-1] == MAX_DRAFT_TOKENS


def test_drafts_stop_before_a_token_that_ends_the_row_and_at_the_limit():
    row = RowDrafts(DraftBook(), [*TEXT, 7, *TEXT[:10]])
    assert row.draft(8, lambda token: token == TEXT[13]) == TEXT[10:13]
    assert row.draft(8, lambda token: token == TEXT[10]) == []
    assert row.plan(2) <= 2
    assert row.plan(0) == row.plan(-1) == 0
    assert RowDrafts(DraftBook(most_tokens=0), [*TEXT, 7, *TEXT[:10]]).plan(8) == 0


def test_a_row_whose_drafts_do_not_come_true_makes_none_until_they_would():
    """Nothing is verified meanwhile: what came is compared with what would have been drafted."""
    book, told = DraftBook(), [1, 2, 3]
    row = RowDrafts(book, told)
    for number in range(60):
        told += [1, 2, 1000 + number]
        row.note(told)
    told += [1, 2]
    row.note(told)
    assert row.plan(MAX_DRAFT_TOKENS) == 0
    for _ in range(40):
        told += [1, 2, 5]
        row.note(told)
    assert row.plan(MAX_DRAFT_TOKENS) == MAX_DRAFT_TOKENS
    assert (book.tally.drafted_tokens, book.tally.accepted_tokens) == (0, 0)


def test_passes_that_cost_as_much_as_their_tokens_end_drafting_and_are_tried_again():
    book = DraftBook()
    row = RowDrafts(book, [*TEXT, 7, *TEXT[:3]])
    row.note_plain(0.1)
    passes = 0
    while row.plan(MAX_DRAFT_TOKENS) and passes < 100:
        passes += 1
        for width in (2, 3, 5, 8, 16):
            row.note_verified(width - 1, 0, 0.1 * width * 1.2)
    assert 0 < passes < 100
    turns = next(turn for turn in range(10_000) if row.plan(MAX_DRAFT_TOKENS))
    assert 0 < turns < 500


def test_one_pass_that_was_held_up_does_not_end_drafting():
    row = RowDrafts(DraftBook(), [*TEXT, 7, *TEXT[:20]])
    row.note_plain(0.1)
    row.note_verified(15, 15, 60.0)
    assert row.plan(MAX_DRAFT_TOKENS) > 0


def test_without_a_plain_pass_to_compare_with_nothing_is_learned_of_costs():
    book = DraftBook()
    row = RowDrafts(book, TEXT)
    row.note_verified(3, 2, 5.0)
    assert book.costs == PassCosts()
    assert (book.tally.drafted_tokens, book.tally.accepted_tokens) == (3, 2)


def test_sure_and_cheap_drafts_are_long_and_doubtful_or_dear_ones_short():
    sure, doubtful = HitRates(), HitRates()
    for match in range(2, 40):
        for _ in range(20):
            sure = sure.noted(match, hit=True)
            doubtful = doubtful.noted(match, hit=match % 2 == 0)
    cheap, dear = PassCosts((1.0, 1.0, 1.1, 1.2, 1.3)), PassCosts((1.9, 2.8, 4.5, 7.5, 15.0))
    assert plan_drafts(sure, cheap, 8, 40) == MAX_DRAFT_TOKENS
    assert plan_drafts(sure, cheap, 8, 5) == 5
    assert 0 < plan_drafts(doubtful, cheap, 8, 40) < MAX_DRAFT_TOKENS
    assert plan_drafts(doubtful, dear, 8, 40) == 0


def test_the_index_is_found_in_texts_longer_than_its_buckets():
    tokens = [(place * 7919) % 60_000 for place in range(50_000)]
    index = NgramIndex([*tokens, *tokens[31_000:31_005]])
    match = index.find()
    assert match is not None
    assert (match.end, match.tokens) == (31_004, 5)
    assert index.following(match, 4) == tokens[31_005:31_009]


def test_a_pass_is_timed_only_between_steps_with_nothing_else_between():
    spans = PlainSpans()
    assert spans.note(0.0, 0.01) is None
    assert round(spans.note(0.011, 0.11) or 0, 3) == 0.1
    # A chunk was fed before this one.
    assert spans.note(0.5, 0.52) is None
    assert round(spans.note(0.521, 0.62) or 0, 3) == 0.1
    spans.cut()
    assert spans.note(0.63, 0.64) is None
