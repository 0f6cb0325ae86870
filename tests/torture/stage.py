"""What a run stands on: a controller outside, an agent with its engines inside the cgroup.

The cgroup's limit is the node's RAM, as the agent's Linux host reads it. Used by the runs and
by tests/behaviour/test_guard_under_limit.py. Units: bytes, seconds, tokens.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from manifests.sizing.estimate import ModelShape
from manifests.sizing.weights import inspect_directory
from manifests.units import GIB, MIB
from tests.support.fleet import SMOLLM2, Fleet, Part, free_port, model_object, running_fleet
from tests.support.tiny_models import tiny_model
from tests.torture.cgroup import Cgroup, limited
from tests.torture.client import Doors
from tests.torture.mix import DEFAULT_MIX, Mix

NODE = "limited"
VISITOR = "visitor"
READY_SECONDS = 120.0
LONG_CONTEXT = 32_768
# A node is chosen for the weights and this much context; all models must find their place.
PLACED_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Served:
    """A model of the run; `files` returns its directory, building it if need be."""

    files: Callable[[], Path]
    chunk_tokens: int

    def spec(self) -> dict[str, Any]:
        """Return what the run declares besides the source."""
        return {
            "prefill": {"chunkTokens": self.chunk_tokens},
            "context": {"minTokens": PLACED_TOKENS},
        }


def _dense() -> Path:
    return tiny_model("llama", context=LONG_CONTEXT, hidden=256, layers=2, heads=2)


def _moe() -> Path:
    return tiny_model("qwen3_moe", context=LONG_CONTEXT, hidden=256, layers=2, heads=2)


def _visitor() -> Path:
    return tiny_model("llama", context=LONG_CONTEXT, hidden=1024, layers=2, heads=8)


def _smollm2() -> Path:
    return SMOLLM2


MODELS: dict[str, Served] = {
    "dense": Served(_dense, 4096),
    "moe": Served(_moe, 4096),
    "smollm2": Served(_smollm2, 512),
    VISITOR: Served(_visitor, 512),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """One run; `margin_bytes` and `reserve_bytes` are the guard's, the rest is the test's."""

    seconds: float = 300.0
    seed: int = 1
    guard: bool = True
    clients: int = 16
    limit_bytes: int = 2 * GIB
    reserve_bytes: int = 384 * MIB
    margin_bytes: int = 128 * MIB
    retries: int = 6
    mix: Mix = field(default_factory=lambda: DEFAULT_MIX)

    @property
    def steady(self) -> list[str]:
        """The models that are loaded before the first request, all but the visitor."""
        return [target.name for target in self.mix.targets if target.name != VISITOR]

    @property
    def comes_and_goes(self) -> frozenset[str]:
        """The models that are taken away and brought back."""
        return frozenset(target.name for target in self.mix.targets if target.comes_and_goes)


@dataclass(frozen=True, slots=True)
class Stage:
    """The running parts."""

    fleet: Fleet
    agent: Part
    group: Cgroup

    @property
    def doors(self) -> Doors:
        """Where clients enter."""
        return Doors(gateway=self.fleet.url, agent=self.agent.url)


def guard_object(plan: Plan) -> dict[str, Any]:
    """Return the MemoryGuard of the run's node."""
    return {
        "kind": "MemoryGuard",
        "metadata": {"name": "torture"},
        "spec": {
            "tier": "balanced",
            "staticReserve": str(plan.reserve_bytes),
            "prefillTransientMargin": str(plan.margin_bytes),
        },
    }


def declare(name: str) -> dict[str, Any]:
    """Return a model of the run as an API object."""
    served = MODELS[name]
    obj = model_object(name, served.files(), **served.spec())
    return {"apiVersion": "mlxfleet.dev/v1alpha1", **obj}


def shape_of(name: str) -> ModelShape:
    """Return a model's shape as the product reads it."""
    shape, _ = inspect_directory(MODELS[name].files())
    return shape


def missing_models(plan: Plan) -> str:
    """Return why the plan's models cannot be served here, or nothing."""
    if "smollm2" in plan.steady and not SMOLLM2.is_dir():
        return f"{SMOLLM2} is missing: make models"
    return ""


@contextmanager
def staged(plan: Plan, directory: Path) -> Iterator[Stage]:
    """Run the fleet with the steady models Ready. Raises CgroupUnavailableError."""
    for target in plan.mix.targets:
        MODELS[target.name].files()
    with (
        limited(f"mlxfleet-torture-{os.getpid()}", plan.limit_bytes) as group,
        running_fleet(directory, agents=0) as fleet,
    ):
        fleet.apply(guard_object(plan))
        stage = Stage(fleet, _start_agent(fleet, group, plan), group)
        for name in plan.steady:
            fleet.apply(declare(name))
        for name in plan.steady:
            fleet.wait_condition("models", name, "Ready", "True", READY_SECONDS)
        yield stage


def _start_agent(fleet: Fleet, group: Cgroup, plan: Plan) -> Part:
    """Start the agent inside the group and wait until its node is Ready."""
    port = free_port()
    command = ["tests.torture.enter", str(group.procs), "node_agent", "--name", NODE]
    command += ["--controller", fleet.url, "--listen", f"127.0.0.1:{port}"]
    command += ["--data", str(fleet.directory / NODE), "--guard", "on" if plan.guard else "off"]
    part = Part(NODE, command, fleet.directory / f"{NODE}.log", f"http://127.0.0.1:{port}")
    fleet.agents[NODE] = part
    part.start()
    fleet.wait_node(NODE)
    return part
