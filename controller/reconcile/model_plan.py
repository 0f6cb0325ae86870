"""Which engines of a model to make and which to stop, one step nearer to what is declared.

Pure. Applied again and again it ends in an empty plan. The rules, in order:

- A copy is outdated when its revision differs, its node no longer matches the selector, or a
  NoExecute taint sends it away. A copy on a lost node counts as absent but keeps its object
  until enough others are ready; if the node returns first, the surplus goes instead.
- New copies are made wherever they fit beside the old ones (surge). Old ones go as soon as
  the rest still makes up the wanted number. Where nothing fits, one old copy goes first,
  because an update that waits for memory the old copy holds would wait for ever.
"""

from dataclasses import dataclass

from controller.placement.filters import can_stay, evicts
from controller.placement.fleet import FleetView, PlacementRequest
from controller.placement.place import Placement, Unplaceable, bind, place
from controller.reconcile.revision import engine_names
from manifests.kinds.engine import EnginePhase


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a model asks for. `recreate` stops every old copy before a new one is made.

    `taken_names` are engine names that cannot be used again yet, whoever's they are.
    """

    request: PlacementRequest
    replicas: int
    revision: str
    recreate: bool = False
    max_unavailable: int = 0
    taken_names: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class EngineView:
    """One existing copy; `released` means that its agent let go and only its name remains.

    `wakes` means that it was unloaded to make room and a request brings it back.
    """

    name: str
    uid: str
    node: str
    revision: str
    phase: EnginePhase = EnginePhase.PENDING
    wakes: bool = False
    terminating: bool = False
    released: bool = False


@dataclass(frozen=True, slots=True)
class CreateEngine:
    """A copy to make on a node. Units: bytes."""

    name: str
    node: str
    needed_bytes: int


@dataclass(frozen=True, slots=True)
class DeleteEngine:
    """A copy to stop, and why."""

    name: str
    uid: str
    node: str
    why: str


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """One step. `refused` says why a wanted copy is missing; empty lists mean: nothing to do."""

    creates: tuple[CreateEngine, ...] = ()
    deletes: tuple[DeleteEngine, ...] = ()
    refused: Unplaceable | None = None
    waiting: str = ""

    @property
    def stuck(self) -> bool:
        """Whether a copy has no node and nothing under way will change that."""
        return self.refused is not None and not self.deletes and not self.waiting


@dataclass(frozen=True, slots=True)
class EngineGroups:
    """A model's copies by what becomes of them."""

    current: tuple[EngineView, ...]
    outdated: tuple[EngineView, ...]
    lost: tuple[EngineView, ...]
    leaving: tuple[EngineView, ...]
    ready: frozenset[str]

    def count_ready(self, engines: tuple[EngineView, ...]) -> int:
        """Return how many of these serve."""
        return sum(1 for engine in engines if engine.name in self.ready)


def group_engines(
    wanted: Wanted, engines: tuple[EngineView, ...], fleet: FleetView
) -> EngineGroups:
    """Return the copies sorted into those that stay, go, are lost and are already leaving."""
    groups: dict[str, list[EngineView]] = {"current": [], "outdated": [], "lost": [], "leaving": []}
    ready: set[str] = set()
    for engine in sorted(engines, key=lambda item: item.name):
        node = fleet.node(engine.node)
        if engine.terminating:
            groups["leaving"].extend([] if engine.released else [engine])
            continue
        if node is None or node.lost:
            groups["lost"].append(engine)
            continue
        # An unloaded copy serves too, after a wait; taking it for missing would stop rollouts.
        if node.ready and (engine.phase is EnginePhase.READY or engine.wakes):
            ready.add(engine.name)
        stays = engine.revision == wanted.revision and can_stay(wanted.request.node_selector, node)
        groups["current" if stays else "outdated"].append(engine)
    return EngineGroups(
        **{name: tuple(found) for name, found in groups.items()}, ready=frozenset(ready)
    )


def plan_engines(wanted: Wanted, engines: tuple[EngineView, ...], fleet: FleetView) -> EnginePlan:
    """Return the next step for one model."""
    groups = group_engines(wanted, engines, fleet)
    if wanted.replicas == 0:
        every = (*groups.current, *groups.outdated, *groups.lost)
        return EnginePlan(deletes=tuple(_stop(engine, "scaled to zero") for engine in every))
    surplus = _plan_surplus(wanted, groups, fleet)
    missing = wanted.replicas - len(groups.current)
    if wanted.recreate and missing > 0 and (groups.outdated or groups.leaving):
        stops = tuple(_stop(engine, "outdated, to be made anew") for engine in groups.outdated)
        waiting = "waiting for old copies to stop (rollout strategy Recreate)"
        return EnginePlan(deletes=stops, waiting=waiting)
    taken = wanted.taken_names.union(engine.name for engine in engines)
    creates, refused = _plan_creates(wanted, missing, taken, fleet)
    retired = _plan_retired(wanted, groups, refused)
    if refused is None or retired or surplus:
        return EnginePlan(creates, (*surplus, *retired), refused)
    # One step at a time: a copy just made or still leaving may be all the change there is room for.
    room = () if groups.leaving or creates else _plan_room(wanted, groups, fleet)
    waiting = "waiting for a stopping copy to free its memory" if groups.leaving else ""
    return EnginePlan(creates, room, refused, waiting)


def _plan_creates(
    wanted: Wanted, missing: int, taken: frozenset[str], fleet: FleetView
) -> tuple[tuple[CreateEngine, ...], Unplaceable | None]:
    creates: list[CreateEngine] = []
    for name in engine_names(wanted.request.model, wanted.revision, taken, max(0, missing)):
        placed = place(wanted.request, fleet)
        if isinstance(placed, Unplaceable):
            return tuple(creates), placed
        creates.append(CreateEngine(name, placed.node, placed.needed_bytes))
        fleet = fleet.with_engine(bind(wanted.request, placed, name))
    return tuple(creates), None


def _plan_surplus(
    wanted: Wanted, groups: EngineGroups, fleet: FleetView
) -> tuple[DeleteEngine, ...]:
    """Stop copies beyond the wanted number, one by one as seen after each stop."""
    kept = list(groups.current)
    stops: list[DeleteEngine] = []
    while len(kept) > wanted.replicas:
        worst = min(kept, key=lambda engine: _removal_order(engine, groups.ready, kept, fleet))
        kept.remove(worst)
        fleet = fleet.without_engine(worst.name)
        stops.append(_stop(worst, "one copy more than wanted"))
    return tuple(stops)


def _plan_retired(
    wanted: Wanted, groups: EngineGroups, refused: Unplaceable | None
) -> tuple[DeleteEngine, ...]:
    """Stop old copies that do not serve or are no longer needed, and lost ones once replaced."""
    idle = [engine for engine in groups.outdated if engine.name not in groups.ready]
    serving = [engine for engine in groups.outdated if engine.name in groups.ready]
    ready = min(wanted.replicas, groups.count_ready(groups.current)) + len(serving)
    spare = max(0, ready - max(0, wanted.replicas - wanted.max_unavailable))
    # Without a successor in sight, maxUnavailable is no reason to stop what serves.
    if refused is not None:
        spare = max(0, ready - wanted.replicas)
    stops = [_stop(engine, "outdated and not serving") for engine in idle]
    stops += [_stop(engine, "outdated, its successor serves") for engine in serving[:spare]]
    if ready >= wanted.replicas:
        stops += [_stop(engine, "its node is lost, others serve") for engine in groups.lost]
    return tuple(stops)


def _plan_room(wanted: Wanted, groups: EngineGroups, fleet: FleetView) -> tuple[DeleteEngine, ...]:
    """Stop the fewest old copies of one node that make room for a new one.

    Only while at most one copy (or maxUnavailable) would be missing from what runs now, so that
    a new revision that cannot load takes one copy away and not all.
    """
    running = len(groups.current) + len(groups.outdated)
    ready = groups.count_ready((*groups.current, *groups.outdated))
    floor = min(wanted.replicas, running) - max(1, wanted.max_unavailable)
    if ready - 1 < floor:
        return ()
    evicted = [engine for engine in groups.outdated if _is_evicted(engine, fleet)]
    options: list[tuple[EngineView, ...]] = []
    for node in sorted({engine.node for engine in groups.outdated}):
        chosen: list[EngineView] = []
        without = fleet
        for engine in (item for item in groups.outdated if item.node == node):
            chosen.append(engine)
            without = without.without_engine(engine.name)
            if isinstance(place(wanted.request, without), Placement):
                options.append(tuple(chosen))
                break
    if options:
        fewest = min(options, key=lambda option: (len(option), option[0].name))
        return tuple(_stop(engine, "makes room for its successor") for engine in fewest)
    return tuple(_stop(engine, "its node's NoExecute taint sends it away") for engine in evicted)


def _removal_order(
    engine: EngineView, ready: frozenset[str], kept: list[EngineView], fleet: FleetView
) -> tuple[bool, int, float, str]:
    """Sort key, first to go first: not serving, doubled on a node, on the fullest node."""
    node = fleet.node(engine.node)
    hard_bytes = node.ceilings.hard_bytes if node is not None else 0
    filled = fleet.placed_bytes(engine.node) / hard_bytes if hard_bytes else 1.0
    copies = sum(1 for item in kept if item.node == engine.node)
    return (engine.name in ready, -copies, -filled, engine.name)


def _is_evicted(engine: EngineView, fleet: FleetView) -> bool:
    node = fleet.node(engine.node)
    return node is not None and evicts(node)


def _stop(engine: EngineView, why: str) -> DeleteEngine:
    return DeleteEngine(engine.name, engine.uid, engine.node, why)
