"""Applying the model plan again and again ends in an empty plan, whatever the fleet."""

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.placement.fleet import FleetView, NodeView, PlacedEngine
from controller.reconcile.model_plan import EnginePlan, EngineView, Wanted, plan_engines
from manifests.kinds.engine import EnginePhase
from manifests.units import GIB
from tests.support.placing import fleet, node, request

SIZES = {"/models/a": 2.0, "/models/b": 5.0, "/models/c": 11.0}
NEEDS = dict(zip(SIZES, (3 * GIB, 6 * GIB, 12 * GIB), strict=True))
MOST_STEPS = 60


@dataclass
class World:
    """Engines of several models on nodes; what a plan asks for happens, step by step."""

    nodes: tuple[NodeView, ...]
    engines: dict[str, tuple[str, EngineView, int]] = field(default_factory=dict)

    def view(self) -> FleetView:
        placements = tuple(
            PlacedEngine(name, model, view.node, needed)
            for name, (model, view, needed) in sorted(self.engines.items())
        )
        return fleet(*self.nodes, engines=placements, weights=SIZES)

    def own(self, model: str) -> tuple[EngineView, ...]:
        return tuple(view for owner, view, _ in self.engines.values() if owner == model)

    def plan(self, want: Wanted) -> EnginePlan:
        return plan_engines(want, self.own(want.request.model), self.view())

    def apply(self, want: Wanted, plan: EnginePlan) -> None:
        model = want.request.model
        for stop in plan.deletes:
            owner, view, needed = self.engines[stop.name]
            self.engines[stop.name] = (owner, replace(view, terminating=True), needed)
        for create in plan.creates:
            assert create.name not in self.engines
            fresh = EngineView(create.name, create.name, create.node, want.revision)
            self.engines[create.name] = (model, fresh, create.needed_bytes)

    def settle(self, failing: frozenset[str] = frozenset()) -> bool:
        """What was asked of agents happens; whether anything did."""
        before = dict(self.engines)
        for name, (owner, view, needed) in before.items():
            here = next((item for item in self.nodes if item.name == view.node), None)
            if view.terminating:
                del self.engines[name]
            elif here is not None and here.ready:
                bad = view.revision in failing
                phase = EnginePhase.FAILED if bad else EnginePhase.READY
                self.engines[name] = (owner, replace(view, phase=phase), needed)
        return before != self.engines

    def ready(self, model: str) -> int:
        up = {item.name for item in self.nodes if item.ready and not item.lost}
        return sum(
            1
            for view in self.own(model)
            if view.phase is EnginePhase.READY and not view.terminating and view.node in up
        )

    def check_memory(self) -> None:
        view = self.view()
        for item in self.nodes:
            assert view.placed_bytes(item.name) <= item.ceilings.hard_bytes


def run(world: World, wants: list[Wanted], failing: frozenset[str] = frozenset()) -> None:
    for _ in range(MOST_STEPS):
        moved = False
        for want in wants:
            plan = world.plan(want)
            world.apply(want, plan)
            world.check_memory()
            moved = moved or bool(plan.creates or plan.deletes)
        moved = world.settle(failing) or moved
        if not moved:
            return
    raise AssertionError("the plans never come to rest")


@st.composite
def node_views(draw: st.DrawFn) -> tuple[NodeView, ...]:
    sizes = draw(st.lists(st.integers(2, 40), min_size=1, max_size=5))
    return tuple(
        node(
            f"n{index}",
            size,
            ready=not lost,
            lost=lost,
            schedulable=draw(st.booleans()) or draw(st.booleans()),
            labels={"disk": draw(st.sampled_from(["fast", "slow"]))},
        )
        for index, size in enumerate(sizes)
        for lost in [draw(st.sampled_from([False, False, False, True]))]
    )


@st.composite
def wants_of(draw: st.DrawFn, revision: str) -> list[Wanted]:
    models = draw(st.lists(st.sampled_from(["m1", "m2", "m3"]), min_size=1, unique=True))
    selectors = st.sampled_from([{}, {}, {"disk": "fast"}])
    return [
        Wanted(
            request=request(
                draw(st.sampled_from(sorted(SIZES))), model, node_selector=draw(selectors)
            ),
            replicas=draw(st.integers(0, 4)),
            revision=revision,
            recreate=draw(st.booleans()),
            max_unavailable=draw(st.integers(0, 2)),
        )
        for model in models
    ]


def at_rest(world: World, wants: list[Wanted]) -> None:
    for want in wants:
        plan = world.plan(want)
        assert not plan.creates
        assert not plan.deletes
        assert not plan.waiting
        live = [view for view in world.own(want.request.model) if not view.terminating]
        reachable = [view for view in live if not lost(world, view)]
        assert len(reachable) <= want.replicas
        if plan.refused is None:
            assert all(view.revision == want.revision for view in reachable)
            assert world.ready(want.request.model) == want.replicas


def lost(world: World, view: EngineView) -> bool:
    return any(item.name == view.node and item.lost for item in world.nodes)


@settings(max_examples=150, deadline=None)
@given(nodes=node_views(), first=wants_of("r1"), second=wants_of("r2"))
def test_declared_updated_and_disturbed_fleets_come_to_rest(
    nodes: tuple[NodeView, ...], first: list[Wanted], second: list[Wanted]
) -> None:
    world = World(nodes)
    run(world, first)
    at_rest(world, first)
    # What is no longer declared keeps running and keeps its memory.
    run(world, second)
    at_rest(world, second)
    world.nodes = tuple(replace(item, ready=True, lost=False) for item in nodes)
    run(world, second)
    at_rest(world, second)


@settings(max_examples=100, deadline=None)
@given(nodes=node_views(), wants=wants_of("r1"), steps=st.integers(0, 3))
def test_a_failing_revision_keeps_copies_serving_and_a_revert_restores_all(
    nodes: tuple[NodeView, ...], wants: list[Wanted], steps: int
) -> None:
    world = World(tuple(replace(item, ready=True, lost=False) for item in nodes))
    surging = [replace(want, recreate=False, max_unavailable=0) for want in wants]
    run(world, surging)
    before = {want.request.model: world.ready(want.request.model) for want in surging}
    bad = [replace(surging[0], revision="bad"), *surging[1:]]
    for _ in range(steps):
        for want in bad:
            world.apply(want, world.plan(want))
        world.settle(frozenset({"bad"}))
    for want in surging:
        assert world.ready(want.request.model) >= before[want.request.model] - 1
    run(world, surging)
    at_rest(world, surging)
    for want in surging:
        assert world.ready(want.request.model) == before[want.request.model]


@settings(max_examples=60, deadline=None)
@given(count=st.integers(1, 5), replicas=st.integers(0, 12))
def test_copies_spread_evenly_over_equal_nodes(count: int, replicas: int) -> None:
    world = World(tuple(node(f"n{index}", 100) for index in range(count)))
    want = Wanted(request=request("/models/a", "m1"), replicas=replicas, revision="r1")
    run(world, [want])
    copies = [world.view().copies("m1", item.name) for item in world.nodes]
    assert sum(copies) == replicas
    assert max(copies) - min(copies) <= 1
