"""Why a node cannot take a copy, as a candidate that names the reason and the bytes.

Pure. Owns the order of reasons: from the node's own state, over the user's wishes, to memory.
"""

from collections.abc import Mapping
from enum import StrEnum

from controller.placement.fleet import (
    FleetView,
    NodeView,
    PlacementRequest,
    SourceFault,
    available_bytes,
    estimate_need,
)
from manifests.kinds.engine import NODE_LABEL
from manifests.kinds.node import Taint
from manifests.units import format_bytes
from manifests.wire.plan import Candidate


class Reason(StrEnum):
    """Machine-readable reasons, nearest to fitting last."""

    SELECTOR_MISMATCH = "SelectorMismatch"
    NOT_READY = "NotReady"
    REBOOT_NEEDED = "RebootNeeded"
    CORDONED = "Cordoned"
    TAINTED = "Tainted"
    SOURCE_UNKNOWN = "SourceUnknown"
    SOURCE_MISSING = "SourceMissing"
    INSUFFICIENT_MEMORY = "InsufficientMemory"


def check_node(request: PlacementRequest, fleet: FleetView, node: NodeView) -> Candidate:
    """Return one node as a candidate: it fits, or why it does not."""
    refused = _check_state(request, node)
    if refused is not None:
        return refused
    found = fleet.sources.get((node.name, request.source))
    if found is None:
        return _no(node, Reason.SOURCE_UNKNOWN, f"{node.name} was not asked about the source yet")
    if isinstance(found, SourceFault):
        return _no(node, found.reason, found.message)
    need = estimate_need(found, request.context, request.prefill, fused=node.fused)
    available = available_bytes(fleet, node)
    short = max(0, need.needed_bytes - available)
    ceilings = node.ceilings
    message = ""
    if short:
        message = (
            f"{format_bytes(max(0, available))} free of a {format_bytes(ceilings.hard_bytes)} "
            f"ceiling ({ceilings.binding.value}), short by {format_bytes(short)}"
        )
    return Candidate(
        node=node.name,
        fits=short == 0,
        reason=Reason.INSUFFICIENT_MEMORY.value if short else "",
        message=message,
        weights_bytes=need.weights_bytes,
        context_bytes=need.context_bytes,
        needed_bytes=need.needed_bytes,
        ceiling_bytes=ceilings.hard_bytes,
        placed_bytes=fleet.placed_bytes(node.name),
        available_bytes=available,
        short_bytes=short,
        binding=ceilings.binding,
    )


def can_stay(selector: Mapping[str, str], node: NodeView) -> bool:
    """Whether a running copy may remain: the node still matches and does not evict."""
    return not _mismatch(selector, node) and not evicts(node)


def evicts(node: NodeView) -> bool:
    """Whether a node carries a taint that sends running engines away."""
    return any(taint.effect == "NoExecute" for taint in node.taints)


def _check_state(request: PlacementRequest, node: NodeView) -> Candidate | None:
    mismatch = _mismatch(request.node_selector, node)
    if mismatch:
        return _no(node, Reason.SELECTOR_MISMATCH, mismatch)
    if not node.ready:
        return _no(node, Reason.NOT_READY, node.why_not_ready or "the node is not ready")
    if node.ceilings.hard_bytes <= 0:
        return _no(node, Reason.NOT_READY, "the node has not reported its memory yet")
    if node.why_reboot:
        return _no(node, Reason.REBOOT_NEEDED, f"the node must be rebooted: {node.why_reboot}")
    if not node.schedulable:
        return _no(node, Reason.CORDONED, "the node is cordoned (spec.unschedulable)")
    taint = next((item for item in node.taints if item.effect != "PreferNoSchedule"), None)
    if taint is not None:
        return _no(node, Reason.TAINTED, f"the node has the taint {_taint_text(taint)}")
    return None


def _mismatch(selector: Mapping[str, str], node: NodeView) -> str:
    labels = {NODE_LABEL: node.name, **node.labels}
    for key, value in sorted(selector.items()):
        if labels.get(key) != value:
            has = f"{key}={labels[key]}" if key in labels else f"no label {key}"
            return f"nodeSelector wants {key}={value}, the node has {has}"
    return ""


def _taint_text(taint: Taint) -> str:
    value = f"={taint.value}" if taint.value else ""
    return f"{taint.key}{value}:{taint.effect}"


def _no(node: NodeView, reason: str, message: str) -> Candidate:
    return Candidate(
        node=node.name,
        fits=False,
        reason=str(reason),
        message=message,
        ceiling_bytes=node.ceilings.hard_bytes,
        binding=node.ceilings.binding,
    )
