"""The final choice among scored endpoints; pure, the random draw is passed in."""

from collections.abc import Sequence

from controller.gateway.endpoints import EndpointView
from controller.gateway.scorers import Scored

_TIE_RATIO = 1.1
_TIE_SECONDS = 0.01


def pick(scored: Sequence[Scored], draw: float) -> EndpointView | None:
    """Return one of the best endpoints, or None when there is none.

    Estimates within a tenth of the best are ties, and `draw` in [0, 1) decides among these:
    equal nodes share the work though one is always a little faster on paper.
    """
    if not scored:
        return None
    limit = min(item.seconds for item in scored) * _TIE_RATIO + _TIE_SECONDS
    ties = [item.endpoint for item in scored if item.seconds <= limit]
    return ties[int(draw * len(ties))]
