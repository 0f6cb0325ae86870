"""The fleet as placement sees it: nodes, what is bound to them, and who can reach which weights.

Owns these frozen values and the byte arithmetic over them. No I/O; built by
`reconcile.observe`, read by filters, scorers and plans.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from manifests.kinds.model import Context, Prefill
from manifests.kinds.node import Ceilings, Taint
from manifests.sizing.estimate import estimate_engine
from manifests.wire.report import Inspection

DEFAULT_CHUNK_TOKENS = 512


@dataclass(frozen=True, slots=True)
class NodeView:
    """One machine. `ready` takes its lease into account.

    `lost` means silent for so long that its engines are to be replaced elsewhere; `fused` that its
    engines have fused attention, whose prompts take less scratch. `why_reboot` says why the machine
    must be rebooted first, empty when it need not be.
    """

    name: str
    ready: bool = True
    schedulable: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    ceilings: Ceilings = field(default_factory=Ceilings)
    address: str = ""
    instance: str = ""
    why_not_ready: str = ""
    lost: bool = False
    fused: bool = False
    why_reboot: str = ""


@dataclass(frozen=True, slots=True)
class PlacedEngine:
    """One copy bound to a node. Units: bytes it needs at its minimum context."""

    name: str
    model: str
    node: str
    needed_bytes: int


@dataclass(frozen=True, slots=True)
class SourceFault:
    """Why a node cannot use a source."""

    reason: str
    message: str


SourceKey = tuple[str, str]
"""(node name, `Source.text`)."""


@dataclass(frozen=True, slots=True)
class FleetView:
    """All of it at one moment.

    `sources` holds what the nodes say of a source now; `shapes` what any node ever said of it,
    for the weights are the same everywhere.
    """

    nodes: tuple[NodeView, ...] = ()
    engines: tuple[PlacedEngine, ...] = ()
    sources: Mapping[SourceKey, Inspection | SourceFault] = field(default_factory=dict)
    shapes: Mapping[str, Inspection] = field(default_factory=dict)

    def node(self, name: str) -> NodeView | None:
        """Return a node by name, or None."""
        return next((node for node in self.nodes if node.name == name), None)

    def placed_bytes(self, node: str) -> int:
        """Return what the engines bound to a node need together."""
        return sum(engine.needed_bytes for engine in self.engines if engine.node == node)

    def copies(self, model: str, node: str) -> int:
        """Return how many copies of a model are bound to a node."""
        return sum(1 for engine in self.engines if (engine.model, engine.node) == (model, node))

    def with_engine(self, engine: PlacedEngine) -> "FleetView":
        """Return the fleet with one more engine."""
        return replace(self, engines=(*self.engines, engine))

    def without_engine(self, name: str) -> "FleetView":
        """Return the fleet without one engine."""
        kept = tuple(engine for engine in self.engines if engine.name != name)
        return replace(self, engines=kept)


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """One copy to place."""

    model: str
    source: str
    context: Context = field(default_factory=Context)
    prefill: Prefill = field(default_factory=Prefill)
    node_selector: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Need:
    """What one copy needs on a node. Units: bytes, tokens."""

    weights_bytes: int
    context_bytes: int
    context_tokens: int

    @property
    def needed_bytes(self) -> int:
        """Weights and context together."""
        return self.weights_bytes + self.context_bytes


def context_tokens(inspection: Inspection, context: Context) -> int:
    """Return the minimum context in tokens, clipped to what the model and the manifest allow."""
    limits = (context.min_tokens, context.max_tokens, inspection.shape.context_tokens)
    return min(limit for limit in limits if limit)


def estimate_need(
    inspection: Inspection, context: Context, prefill: Prefill, *, fused: bool = False
) -> Need:
    """Return what a copy needs to hold its weights and its minimum context on such a node."""
    tokens = context_tokens(inspection, context)
    chunk_tokens = min(prefill.chunk_tokens or DEFAULT_CHUNK_TOKENS, tokens)
    estimate = estimate_engine(
        inspection.shape,
        inspection.weights_bytes,
        context_tokens=tokens,
        chunk_tokens=chunk_tokens,
        fused=fused,
    )
    return Need(
        weights_bytes=estimate.weights_bytes,
        context_bytes=estimate.needed_bytes - estimate.weights_bytes,
        context_tokens=tokens,
    )


def available_bytes(fleet: FleetView, node: NodeView) -> int:
    """Return what is left of a node's hard ceiling for one more engine; negative when over.

    Only engines are subtracted. What other programs hold is not: the dynamic ceiling already
    leaves it out, and what our engines hold is inside it, so subtracting use would count it
    twice. Engines being stopped count until their object is gone, as their memory does.
    """
    return node.ceilings.hard_bytes - fleet.placed_bytes(node.name)
