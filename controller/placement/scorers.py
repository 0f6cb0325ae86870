"""Which of the nodes that fit is best. Pure; larger is better, compared left to right."""

from controller.placement.fleet import FleetView, NodeView, PlacementRequest
from manifests.wire.plan import Candidate

Score = tuple[float, ...]


def score_node(
    request: PlacementRequest, fleet: FleetView, node: NodeView, candidate: Candidate
) -> Score:
    """Return how good a node is for one more copy.

    Fewest copies of the same model first, so that one Mac's death takes one copy; then nodes
    that no taint asks to spare; then the node that keeps the largest share of its ceiling
    free, which spreads load over unequal Macs by size and not by count.
    """
    spared = any(taint.effect == "PreferNoSchedule" for taint in node.taints)
    return (
        -float(fleet.copies(request.model, node.name)),
        0.0 if spared else 1.0,
        remaining_ratio(candidate),
    )


def remaining_ratio(candidate: Candidate) -> float:
    """Return the share of the ceiling that stays free once the copy is there."""
    if candidate.ceiling_bytes <= 0:
        return 0.0
    return (candidate.available_bytes - candidate.needed_bytes) / candidate.ceiling_bytes
