import pytest

from node_agent.text.stops import StopMatcher

PIECES = ["alpha ", "beta", " gam", "ma de", "lta"]


def run(stops: list[str], pieces: list[str] = PIECES) -> tuple[str, bool]:
    matcher = StopMatcher(stops)
    text = "".join(matcher.push(piece) for piece in pieces) + matcher.flush()
    return text, matcher.matched is not None


@pytest.mark.parametrize(
    ("stops", "expected"),
    [
        (["beta gam"], "alpha "),
        (["ma d"], "alpha beta gam"),
        (["beta gamma", "beta"], "alpha "),
        (["alpha"], ""),
        (["lta"], "alpha beta gamma de"),
    ],
)
def test_text_ends_right_before_the_stop(stops: list[str], expected: str) -> None:
    """B13: also when the stop spans tokens; no character of it is sent."""
    assert run(stops) == (expected, True)


@pytest.mark.parametrize("stops", [[], [""], ["omega"], ["deltas"]])
def test_text_without_a_stop_is_unchanged(stops: list[str]) -> None:
    """B13: an empty stop is no stop, and what was held back comes out at the end."""
    assert run(stops) == ("alpha beta gamma delta", False)


def test_only_what_may_become_a_stop_is_held_back() -> None:
    """B13: the sent text is never behind by more than the beginning of a stop."""
    matcher = StopMatcher(["STOP"])
    assert matcher.push("one ST") == "one "
    assert matcher.push("EP two") == "STEP two"
    assert matcher.push(" S") == " "
    assert matcher.flush() == "S"


def test_a_longer_stop_that_began_earlier_is_waited_for() -> None:
    """B13: the leftmost occurrence wins however the text was cut."""
    matcher = StopMatcher(["abcd", "bc"])
    assert matcher.push("abc") == ""
    assert matcher.push("d") == ""
    assert matcher.matched == "abcd"
    other = StopMatcher(["abcd", "bc"])
    assert other.push("abc") + other.push("x") == "a"
    assert other.matched == "bc"


def test_nothing_comes_out_after_a_match() -> None:
    matcher = StopMatcher(["x"])
    assert matcher.push("a x b") == "a "
    assert matcher.push("more") == matcher.flush() == ""
