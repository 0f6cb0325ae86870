"""The reconcilers over a real registry, with agents that only lack engines."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import aiohttp

from controller.reconcile.app import Reconcilers, build_controllers
from controller.reconcile.revision import engine_revision
from controller.reconcile.settings import ReconcileSettings
from controller.registry.registry import Registry
from controller.store.memory import MemoryStore
from manifests.kinds.engine import Engine
from manifests.kinds.meta import find_condition
from manifests.kinds.model import Model
from manifests.kinds.node import Node
from manifests.kinds.scheme import parse_object
from tests.support.stand_in_agent import API, StandInAgent

SETTINGS = ReconcileSettings(
    replace_grace_seconds=0.4,
    tick_seconds=0.05,
    unplaced_retry_seconds=0.2,
    inspect_fresh_seconds=1.0,
)
SMALL, LARGE, HUGE = "/models/small", "/models/large", "/models/huge"
WEIGHTS = {SMALL: 2.0, LARGE: 5.0, HUGE: 50.0}


def manifest(name: str = "m", source: str = SMALL, **spec: Any) -> dict[str, Any]:
    spec = {"source": {"path": source}, "context": {"minTokens": 64}, **spec}
    return {"apiVersion": API, "kind": "Model", "metadata": {"name": name}, "spec": spec}


@dataclass
class Fleet:
    registry: Registry
    reconcilers: Reconcilers
    agents: dict[str, StandInAgent]
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        for informer in self.reconcilers.informers.values():
            informer.subscribe(lambda _: self.changed.set())

    async def until(self, probe: Callable[[], Any]) -> Any:
        """Wait, woken by every change of any object, until the probe holds."""
        async with asyncio.timeout(20):
            while not (answer := probe()):
                await self.changed.wait()
                self.changed.clear()
        return answer

    def model(self, name: str = "m") -> Model:
        return cast(Model, self.reconcilers.informers["models"].objects[name])

    def condition(self, type_: str, name: str = "m") -> tuple[str, str, str]:
        model = self.reconcilers.informers["models"].objects.get(name)
        found = (
            None if model is None else find_condition(cast(Model, model).status.conditions, type_)
        )
        if found is None or model is None or found.observed_generation != model.metadata.generation:
            return ("", "", "")
        return (found.status.value, found.reason, found.message)

    def is_ready(self, name: str = "m") -> bool:
        return self.condition("Ready", name)[0] == "True"

    def engines(self) -> list[Engine]:
        return [
            cast(Engine, item) for item in self.reconcilers.informers["engines"].objects.values()
        ]

    def nodes_of(self, name: str = "m") -> list[str]:
        return sorted(item.spec.node for item in self.engines() if item.spec.model == name)

    def reasons(self) -> set[str]:
        return {
            cast(Any, item).reason for item in self.reconcilers.informers["events"].objects.values()
        }


@asynccontextmanager
async def running(**gib: float) -> AsyncIterator[Fleet]:
    registry = Registry(MemoryStore())
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        agents = {
            name: await stack.enter_async_context(
                StandInAgent(registry, name, size, WEIGHTS).serve()
            )
            for name, size in gib.items()
        }
        reconcilers = build_controllers(registry, session, SETTINGS)
        fleet = Fleet(registry, reconcilers, agents)
        task = asyncio.create_task(reconcilers.run())
        try:
            yield fleet
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_a_declared_model_runs_spread_over_the_nodes_and_says_so() -> None:
    async with running(a=10, b=10) as fleet:
        await fleet.registry.create("models", manifest(replicas=2))
        await fleet.until(fleet.is_ready)
        assert fleet.nodes_of() == ["a", "b"]
        status = fleet.model().status
        assert (status.replicas, status.ready_replicas, status.updated_replicas) == (2, 2, 2)
        assert (status.weights_bytes, status.context_tokens) == (2 << 30, 8192)
        assert status.kv_bytes_per_token > 0
        assert status.observed_generation == 1
        await fleet.until(lambda: {"Placed", "Ready"} <= fleet.reasons())


async def test_scaling_to_zero_and_deleting_leave_nothing_behind() -> None:
    async with running(a=10) as fleet:
        await fleet.registry.create("models", manifest())
        await fleet.until(fleet.is_ready)
        await fleet.registry.patch("models", "m", {"spec": {"replicas": 0}})
        await fleet.until(lambda: not fleet.engines())
        await fleet.until(lambda: fleet.condition("Ready")[1] == "ScaledToZero")
        await fleet.registry.patch("models", "m", {"spec": {"replicas": 1}})
        await fleet.until(lambda: fleet.is_ready() and fleet.engines())
        await fleet.registry.delete("models", "m")
        await fleet.until(lambda: not fleet.engines())
        assert fleet.agents["a"].running == set()


async def test_a_model_that_fits_nowhere_is_explained_and_placed_once_it_fits() -> None:
    async with running(a=10, b=20) as fleet:
        await fleet.registry.create("models", manifest(source=HUGE))
        await fleet.until(lambda: fleet.condition("Ready")[1] == "Unplaceable")
        _, reason, message = fleet.condition("Placed")
        assert reason == "InsufficientMemory"
        assert "nearest is b: 20.0 GiB free of a 20.0 GiB ceiling (static)" in message
        await fleet.until(lambda: "Unplaceable" in fleet.reasons())
        fleet.agents["b"].gib = 64
        await fleet.until(fleet.is_ready)
        assert fleet.nodes_of() == ["b"]


async def test_models_never_share_the_same_bytes_however_fast_they_are_declared() -> None:
    async with running(a=7, b=7) as fleet:
        for index in range(4):
            await fleet.registry.create("models", manifest(f"m{index}", LARGE))
        await fleet.until(
            lambda: all(
                fleet.condition("Ready", f"m{i}")[1] in {"Ready", "Unplaceable"} for i in range(4)
            )
        )
        assert sorted(item.spec.node for item in fleet.engines()) == ["a", "b"]


async def test_an_update_on_a_full_node_and_its_revert_both_complete() -> None:
    """B71."""
    async with running(a=7) as fleet:
        await fleet.registry.create("models", manifest(source=LARGE))
        await fleet.until(fleet.is_ready)
        first = fleet.engines()[0].spec.revision
        await fleet.registry.patch("models", "m", {"spec": {"context": {"maxTokens": 512}}})
        await fleet.until(lambda: fleet.is_ready() and fleet.engines()[0].spec.revision != first)
        await fleet.registry.patch("models", "m", {"spec": {"context": {"maxTokens": None}}})
        await fleet.until(lambda: fleet.is_ready() and fleet.engines()[0].spec.revision == first)


async def test_a_revision_that_cannot_load_is_reported_and_the_old_one_serves() -> None:
    """B71."""
    async with running(a=20) as fleet:
        await fleet.registry.create("models", manifest())
        await fleet.until(fleet.is_ready)
        old = fleet.engines()[0]
        fleet.agents["a"].failing = {revision_of(context={"minTokens": 64, "maxTokens": 99})}
        await fleet.registry.patch("models", "m", {"spec": {"context": {"maxTokens": 99}}})
        await fleet.until(lambda: fleet.condition("Ready")[1] == "EngineFailed")
        assert "cannot load" in fleet.condition("Ready")[2]
        assert fleet.model().status.ready_replicas == 1
        assert old.metadata.name in fleet.agents["a"].running


def revision_of(**spec: Any) -> str:
    return engine_revision(cast(Model, parse_object(manifest(**spec))).spec)


async def test_a_dead_node_is_replaced_once_and_its_return_leaves_no_surplus() -> None:
    """B66, B79."""
    async with running(a=10, b=10, c=10) as fleet:
        await fleet.registry.create("models", manifest(replicas=2))
        await fleet.until(fleet.is_ready)
        dead = fleet.agents[fleet.nodes_of()[0]]
        dead.alive = False
        await fleet.until(lambda: node_reason(fleet, dead.name) == "LeaseExpired")
        await fleet.until(lambda: fleet.is_ready() and dead.name not in fleet.nodes_of())
        assert len(fleet.engines()) == 2
        assert {"LeaseExpired", "NodeLost"} <= fleet.reasons()
        dead.alive = True
        dead.changed.set()
        await fleet.until(lambda: node_reason(fleet, dead.name) != "LeaseExpired")
        assert len(fleet.engines()) == 2
        await fleet.registry.patch("models", "m", {"spec": {"replicas": 3}})
        await fleet.until(lambda: fleet.is_ready() and fleet.model().spec.replicas == 3)
        assert fleet.nodes_of() == ["a", "b", "c"]


async def test_engines_of_a_node_whose_object_was_deleted_are_replaced() -> None:
    """B67, B79: a ghost neither serves nor blocks."""
    async with running(a=10, b=10) as fleet:
        await fleet.registry.create("models", manifest())
        await fleet.until(fleet.is_ready)
        (ghost,) = fleet.nodes_of()
        fleet.agents[ghost].alive = False
        await fleet.registry.delete("nodes", ghost)
        await fleet.until(lambda: fleet.is_ready() and ghost not in fleet.nodes_of())
        assert len(fleet.engines()) == 1


def node_reason(fleet: Fleet, name: str) -> str:
    node = cast(Node, fleet.reconcilers.informers["nodes"].objects[name])
    found = find_condition(node.status.conditions, "Ready")
    return "" if found is None else found.reason


async def test_a_plan_tells_what_would_happen_and_stores_nothing() -> None:
    async with running(a=7, b=20) as fleet:
        await fleet.registry.create("models", manifest("here", LARGE))
        await fleet.until(lambda: fleet.is_ready("here"))
        asked = [
            manifest("here", LARGE, replicas=2),
            manifest("next", LARGE, replicas=3),
            manifest("none", "/models/nowhere"),
        ]
        models = [cast(Model, parse_object(item)) for item in asked]
        report = await fleet.reconcilers.plan_models(models)
        here, following, none = report.models
        assert (here.nodes, here.placed) == (("b", "a"), 2)
        assert (following.nodes, following.placed) == (("b", "b"), 2)
        assert following.message.startswith("needs 5.")
        assert [item.node for item in following.candidates if item.chosen] == ["b"]
        assert (none.placed, none.message.split(":")[0]) == (0, "b")
        assert "does not exist on b" in none.message
        assert len(fleet.engines()) == 1
