"""How long a request has been under way already when a gateway hands it to an agent.

Pure. The gateway takes the header off what clients send and sets its own, so that a deadline counts
from when the client's request came, whatever node it is tried on.
"""

import math

ELAPSED_HEADER = "x-mlxfleet-elapsed-seconds"


def format_elapsed(seconds: float) -> str:
    """Return the header's value."""
    return f"{max(0.0, seconds):.3f}"


def parse_elapsed(text: str | None) -> float:
    """Return the seconds; 0 without the header, or when it is no such number."""
    try:
        seconds = float(text or 0)
    except ValueError:
        return 0.0
    return seconds if math.isfinite(seconds) and seconds > 0 else 0.0
