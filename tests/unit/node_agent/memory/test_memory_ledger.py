"""Promises: made once, counted once, gone after release."""

from node_agent.memory.ledger import Ledger


def test_two_demands_never_get_the_same_bytes() -> None:
    ledger = Ledger()
    assert ledger.reserve("a", 60, 100, {"a": 20}) is not None
    assert ledger.reserve("b", 60, 100, {"a": 20}) is None
    assert ledger.headroom_bytes(100, {"a": 20}) == 20


def test_memory_that_has_materialised_is_no_longer_reserved() -> None:
    ledger = Ledger()
    ledger.reserve("a", 60, 100, {"a": 20})
    assert ledger.reserved_bytes({"a": 50}) == 30
    assert ledger.headroom_bytes(100, {"a": 50}) == 20
    assert ledger.reserved_bytes({"a": 200}) == 0


def test_a_release_gives_everything_back_once() -> None:
    ledger = Ledger()
    number = ledger.reserve("a", 60, 100, {})
    assert number is not None
    assert ledger.release(number, {}) is True
    assert ledger.release(number, {}) is False
    assert ledger.headroom_bytes(100, {}) == 100


def test_a_finished_request_does_not_take_its_neighbours_promise_along() -> None:
    ledger = Ledger()
    first = ledger.reserve("a", 10, 100, {"a": 0})
    second = ledger.reserve("a", 10, 100, {"a": 0})
    assert first is not None
    assert second is not None
    # Ten bytes grew; whose they are is unknown, so the survivor may still need its ten.
    assert ledger.release(first, {"a": 10})
    assert ledger.reserved_bytes({"a": 10}) == 10


def test_growth_beyond_the_released_promise_stays_with_the_survivor() -> None:
    ledger = Ledger()
    first = ledger.reserve("a", 10, 100, {"a": 0})
    ledger.reserve("a", 10, 100, {"a": 0})
    assert first is not None
    ledger.release(first, {"a": 15})
    assert ledger.reserved_bytes({"a": 15}) == 5


def test_engines_growth_is_told_apart() -> None:
    ledger = Ledger()
    ledger.reserve("a", 10, 100, {"a": 0, "b": 0})
    ledger.reserve("b", 10, 100, {"a": 0, "b": 0})
    assert ledger.reserved_bytes({"a": 10, "b": 0}) == 10
    assert ledger.engine_reserved_bytes("b", {"a": 10, "b": 0}) == 10


def test_a_ceiling_below_the_promises_shows_as_negative_headroom() -> None:
    ledger = Ledger()
    ledger.reserve("a", 60, 100, {})
    assert ledger.headroom_bytes(50, {}) == -10
