"""Requests that share a prefix: one computes, the others wait, and nobody waits for ever."""

from node_agent.kvcache.inflight import (
    Inflight,
    Turn,
    Verdict,
    block_done,
    join,
    leave,
    next_deadline,
    overdue,
)

A, B, C, X, Y = (letter.encode() for letter in "ABCXY")


def turns(verdicts: tuple[Verdict, ...]) -> list[tuple[str, str]]:
    return [(verdict.request_id, str(verdict.turn)) for verdict in verdicts]


def joined(*requests: tuple[str, list[bytes]]) -> Inflight:
    state = Inflight(wait_seconds=10)
    for request_id, missing in requests:
        state, _ = join(state, request_id, missing, 0)
    return state


def test_the_first_computes_and_the_second_waits_for_the_deepest_shared_block() -> None:
    state, first = join(Inflight(), "one", [A, B, C], 0)
    state, second = join(state, "two", [A, B, X], 0)
    assert turns(first) == [("one", "compute")]
    assert second == (Verdict("two", Turn.WAIT, B, "one"),)


def test_requests_that_share_nothing_do_not_wait() -> None:
    _, verdicts = join(joined(("one", [A, B])), "two", [X, Y], 0)
    assert turns(verdicts) == [("two", "compute")]


def test_a_request_that_lacks_nothing_computes_its_last_token() -> None:
    _, verdicts = join(joined(("one", [A])), "two", [], 0)
    assert turns(verdicts) == [("two", "compute")]


def test_a_waiting_request_is_freed_by_its_block_and_by_no_earlier_one() -> None:
    state = joined(("one", [A, B, C]), ("two", [A, B, X]))
    state, early = block_done(state, "one", A, 1)
    state, freed = block_done(state, "one", B, 2)
    assert (turns(early), turns(freed)) == ([], [("two", "compute")])


def test_of_those_freed_together_the_first_computes_what_they_share_further() -> None:
    state = joined(("one", [A]), ("two", [A, X, Y]), ("three", [A, X, Y]), ("four", [A, C]))
    state, freed = block_done(state, "one", A, 1)
    assert turns(freed) == [("two", "compute"), ("three", "wait"), ("four", "compute")]
    state, freed = block_done(state, "two", X, 2)
    assert freed == ()
    _, freed = block_done(state, "two", Y, 3)
    assert turns(freed) == [("three", "compute")]


def test_when_the_computing_request_is_cancelled_the_next_takes_over() -> None:
    state = joined(("one", [A, B]), ("two", [A, B]), ("three", [A, B]))
    state, _ = block_done(state, "one", A, 1)
    state, verdicts = leave(state, "one", 2)
    assert verdicts == (
        Verdict("two", Turn.COMPUTE),
        Verdict("three", Turn.WAIT, B, "two"),
    )
    state, verdicts = leave(state, "two", 3)
    assert turns(verdicts) == [("three", "compute")]
    state, verdicts = leave(state, "three", 4)
    assert (verdicts, state.computing, state.waiting) == ((), {}, ())


def test_nobody_waits_for_a_block_that_the_one_who_took_over_found_stored() -> None:
    state = joined(("one", [A, B]), ("two", [A, B]), ("three", [A, X]))
    # A is stored and frees three, which computes X; then one fails and two goes on from A.
    state, _ = block_done(state, "one", A, 1)
    state, _ = leave(state, "one", 2)
    _, verdicts = join(state, "four", [X], 3)
    assert A not in state.computing
    assert turns(verdicts) == [("four", "wait")]


def test_a_waiting_request_that_is_cancelled_frees_nobody_and_is_forgotten() -> None:
    state = joined(("one", [A]), ("two", [A]))
    state, verdicts = leave(state, "two", 1)
    assert verdicts == ()
    assert block_done(state, "one", A, 2)[1] == ()


def test_a_wait_ends_at_its_deadline() -> None:
    state = joined(("one", [A]), ("two", [A]))
    assert next_deadline(state) == 10
    assert overdue(state, 9.9)[1] == ()
    state, verdicts = overdue(state, 10)
    assert turns(verdicts) == [("two", "compute")]
    assert next_deadline(state) is None


def test_a_block_reported_by_another_than_its_owner_changes_nothing() -> None:
    state = joined(("one", [A]), ("two", [A]))
    assert block_done(state, "two", A, 1) == (state, ())
    assert block_done(state, "one", X, 1) == (state, ())
