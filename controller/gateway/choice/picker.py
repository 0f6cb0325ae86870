"""The final choice among scored endpoints; pure, the random draw is passed in."""

from collections.abc import Mapping, Sequence

from controller.gateway.choice.scorers import Scored
from controller.gateway.nodes.endpoints import EndpointKey

_TIE_RATIO = 1.1
# Nobody notices so little, and no estimate is so good.
_TIE_SECONDS = 0.05
# Machines whose best days differ by less than this are of one size.
_SIZE_RATIO = 1.25
_NEVER = float("-inf")


def pick(
    scored: Sequence[Scored], draw: float, last_used: Mapping[EndpointKey, float] | None = None
) -> Scored | None:
    """Return one of the best endpoints, or None when there is none.

    Estimates within a tenth of the best are ties. Of these the smallest machines go first, so
    that short requests leave the room of large ones to those who need it; of these the one used
    longest ago, and `draw` in [0, 1) decides what is left: equal nodes share the work though one
    is always a little faster on paper.
    """
    if not scored:
        return None
    limit = min(item.seconds for item in scored) * _TIE_RATIO + _TIE_SECONDS
    ties = _smallest([item for item in scored if item.seconds <= limit])
    used = last_used or {}
    oldest = min(used.get(item.endpoint.key, _NEVER) for item in ties)
    left = [item for item in ties if used.get(item.endpoint.key, _NEVER) <= oldest]
    return left[int(draw * len(left))]


def _smallest(ties: Sequence[Scored]) -> Sequence[Scored]:
    """Return those of the smallest size; an unknown size counts as the smallest."""
    smallest = min(item.endpoint.ever_bytes for item in ties)
    return [item for item in ties if item.endpoint.ever_bytes <= smallest * _SIZE_RATIO]
