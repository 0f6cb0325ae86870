"""Choosing a node for one copy of a model, or saying what is missing.

Pure. Called by the model plan and by `POST /fleet/v1/plan`, which therefore never disagree.
"""

from collections import Counter
from dataclasses import dataclass

from controller.placement.filters import Reason, check_node
from controller.placement.fleet import FleetView, PlacedEngine, PlacementRequest, context_tokens
from controller.placement.scorers import score_node
from manifests.units import format_bytes
from manifests.wire.plan import Candidate
from manifests.wire.report import Inspection

_CLOSENESS = {reason.value: rank for rank, reason in enumerate(Reason)}


@dataclass(frozen=True, slots=True)
class Placement:
    """The node chosen, and every node as it was seen. Units: bytes."""

    node: str
    needed_bytes: int
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True)
class Unplaceable:
    """Why no node takes the copy; `reason` is that of the node that came closest."""

    reason: str
    message: str
    candidates: tuple[Candidate, ...]


def place(request: PlacementRequest, fleet: FleetView) -> Placement | Unplaceable:
    """Return where one more copy goes, or why it goes nowhere."""
    candidates = tuple(check_node(request, fleet, node) for node in fleet.nodes)
    fitting = [
        (tuple(-part for part in score_node(request, fleet, node, candidate)), candidate)
        for node, candidate in zip(fleet.nodes, candidates, strict=True)
        if candidate.fits
    ]
    if not fitting:
        return _explain(request, fleet, candidates)
    _, best = min(fitting, key=lambda item: (item[0], item[1].node))
    marked = tuple(
        item.model_copy(update={"chosen": True}) if item.node == best.node else item
        for item in candidates
    )
    return Placement(best.node, best.needed_bytes, marked)


def bind(request: PlacementRequest, placement: Placement, name: str) -> PlacedEngine:
    """Return the engine that a placement stands for, for `FleetView.with_engine`."""
    return PlacedEngine(name, request.model, placement.node, placement.needed_bytes)


def _explain(
    request: PlacementRequest, fleet: FleetView, candidates: tuple[Candidate, ...]
) -> Unplaceable:
    if not candidates:
        return Unplaceable("NoNodes", "no node has registered", ())
    short = [item for item in candidates if item.reason == Reason.INSUFFICIENT_MEMORY.value]
    if short:
        nearest = min(short, key=lambda item: (item.short_bytes, item.node))
        rest = _others([item for item in candidates if item not in short])
        message = _memory_message(request, fleet, nearest)
        return Unplaceable(nearest.reason, message + rest, candidates)
    nearest = max(candidates, key=lambda item: (_CLOSENESS.get(item.reason, 99), item.node))
    message = f"{nearest.node}: {nearest.message}"
    rest = _others([item for item in candidates if item is not nearest])
    return Unplaceable(nearest.reason, message + rest, candidates)


def _memory_message(request: PlacementRequest, fleet: FleetView, nearest: Candidate) -> str:
    found = fleet.sources.get((nearest.node, request.source))
    tokens = context_tokens(found, request.context) if isinstance(found, Inspection) else 0
    return (
        f"needs {format_bytes(nearest.needed_bytes)} "
        f"(weights {format_bytes(nearest.weights_bytes)} + "
        f"context {format_bytes(nearest.context_bytes)} for {tokens} tokens); "
        f"nearest is {nearest.node}: {nearest.message}"
    )


def _others(candidates: list[Candidate]) -> str:
    if not candidates:
        return ""
    counts = Counter(item.reason for item in candidates)
    return "; also " + ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items()))
