"""How much of a request's time is left. Pure; called by `completion.py`."""

import math

from manifests.errors import Code, Refusal

# An engine reads 0 as no deadline, so what is over by a hair is given this much.
_LEAST_SECONDS = 0.001


def left_seconds(deadline_seconds: float | None, elapsed_seconds: float) -> float:
    """Return the time that is left, never below 0; infinite without a deadline."""
    if deadline_seconds is None:
        return math.inf
    return max(0.0, deadline_seconds - elapsed_seconds)


def engine_deadline_seconds(left: float) -> float:
    """Return the same as the engine counts it: from when it gets the request, 0 for none."""
    return 0.0 if math.isinf(left) else max(_LEAST_SECONDS, left)


def over_refusal(deadline_seconds: float) -> Refusal:
    """Return the answer to a request whose time was over before an engine had it."""
    return Refusal(
        Code.DEADLINE_EXCEEDED,
        f"The deadline of {deadline_seconds:g} seconds passed before the request could run.",
        hint="Give it more deadline_seconds, or a higher priority.",
        param="deadline_seconds",
    )
