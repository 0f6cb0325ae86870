"""The agent against the controller: register, lease, engines, outages, clones."""

import asyncio
from typing import Any

import psutil
import pytest

from manifests.kinds.engine import EnginePhase
from manifests.wire.listwatch import RawObject
from node_agent.pool.pool import EnginePool
from node_agent.sync.lease import NodeTakenError
from tests.support.api_host import ApiHost, condition
from tests.support.pools import await_ready, await_view
from tests.support.scripted_engine import Script

pytestmark = pytest.mark.processes


def is_ready(obj: RawObject | None) -> bool:
    return condition(obj, "Ready")[0] == "True"


def is_gone(obj: RawObject | None) -> bool:
    return obj is None


async def test_an_agent_registers_its_node_and_renews_its_lease(api: ApiHost, agents: Any) -> None:
    agents.start()
    first = await api.wait("nodes", "here", is_ready)
    status = first["status"]
    assert status["capacityBytes"] == 16 << 30
    assert status["address"] == "http://127.0.0.1:9"
    assert status["ceilings"]["hardBytes"] == 12 << 30
    renewed = await api.wait(
        "nodes", "here", lambda obj: obj["status"]["leaseTime"] > status["leaseTime"]
    )
    assert renewed["metadata"]["generation"] == first["metadata"]["generation"]


async def test_a_declared_engine_runs_and_a_deleted_one_is_let_go_after_it_stopped(
    api: ApiHost, agents: Any
) -> None:
    side = agents.start()
    await api.add_engine("tiny-0", "here")
    await api.add_engine("tiny-1", "elsewhere")
    ready = await api.wait("engines", "tiny-0", is_ready)
    pid = ready["status"]["pid"]
    assert psutil.pid_exists(pid)
    assert ready["status"]["fingerprint"] == "fingerprint"
    fits = lambda obj: obj["status"].get("tokensFitNow", 0) > 0  # noqa: E731
    assert (await api.wait("engines", "tiny-0", fits))["status"]["tokensFitEver"] == 4096
    assert [view.want.name for view in side.pool.views()] == ["tiny-0"]

    await api.registry.delete("engines", "tiny-0")
    await api.wait("engines", "tiny-0", is_gone)
    assert not psutil.pid_exists(pid)


async def test_a_crash_is_told_in_status_and_event(api: ApiHost, agents: Any) -> None:
    agents.start()
    await api.add_engine("tiny-0", "here")
    ready = await api.wait("engines", "tiny-0", is_ready)
    psutil.Process(ready["status"]["pid"]).kill()
    again = await api.wait(
        "engines", "tiny-0", lambda obj: obj["status"]["restarts"] == 1 and is_ready(obj)
    )
    assert again["status"]["pid"] != ready["status"]["pid"]
    told = await api.wait_any("events", lambda obj: obj["reason"] == "Restarted")
    assert (told["count"], told["type"]) == (1, "Warning")
    assert told["involvedObject"]["uid"] == ready["metadata"]["uid"]
    told = await api.wait_any("events", lambda obj: obj["reason"] == "Ready" and obj["count"] == 2)


async def test_a_model_that_does_not_load_is_a_failed_engine_with_its_reason(
    api: ApiHost, agents: Any
) -> None:
    agents.start(script=Script(load_failed="unsupported layer"))
    await api.add_engine("tiny-0", "here")
    failed = await api.wait(
        "engines", "tiny-0", lambda obj: obj.get("status", {}).get("phase") == "Failed"
    )
    assert "unsupported layer" in failed["status"]["message"]
    assert condition(failed, "Ready")[0] == "False"


async def test_serving_goes_on_without_the_controller_and_deletes_are_caught_up_with(
    api: ApiHost, agents: Any
) -> None:
    """B83: what changed while the link was down is acted on after it returns."""
    side = agents.start()
    for name in ("kept", "gone", "replaced"):
        await api.add_engine(name, "here")
        await api.wait("engines", name, is_ready)
    pids = {view.want.name: view.pid for view in side.pool.views()}

    await api.stop()
    for name in ("gone", "replaced"):
        await api.registry.delete("engines", name)
        await api.registry.patch("engines", name, {"metadata": {"finalizers": []}})
    await api.add_engine("replaced", "here")
    await api.add_engine("new", "here")
    assert all(view.accepting for view in side.pool.views())
    assert {view.pid for view in side.pool.views()} == set(pids.values())
    await api.start()

    await api.wait("engines", "new", is_ready)
    replaced = await api.wait("engines", "replaced", is_ready)
    await await_names(side.pool, ["kept", "new", "replaced"])
    assert not psutil.pid_exists(pids["gone"] or 0)
    assert replaced["status"]["pid"] != pids["replaced"]
    kept = next(view for view in side.pool.views() if view.want.name == "kept")
    assert kept.pid == pids["kept"]


async def test_a_restarted_agent_serves_what_ran_last_when_the_controller_is_down(
    api: ApiHost, agents: Any
) -> None:
    first = agents.start()
    await api.add_engine("tiny-0", "here")
    await api.wait("engines", "tiny-0", is_ready)
    await api.stop()
    await first.crash()

    second = agents.start()
    await await_ready(second.pool)
    await api.registry.delete("engines", "tiny-0")
    await api.start()
    await api.wait("engines", "tiny-0", is_gone)
    assert second.pool.views() == ()


async def test_an_agent_that_never_ran_an_engine_starts_none_without_the_controller(
    api: ApiHost, agents: Any
) -> None:
    await api.add_engine("tiny-0", "here")
    await api.stop()
    side = agents.start()
    await api.start()
    await await_view(side.pool, lambda view: view.phase is EnginePhase.READY)
    await api.wait("engines", "tiny-0", is_ready)


async def test_a_second_agent_of_the_same_name_is_refused_and_the_first_goes_on(
    api: ApiHost, agents: Any
) -> None:
    """B67: a cloned or second agent under a taken name says so and stops."""
    agents.start(lease_seconds=1.0)
    await api.wait("nodes", "here", is_ready)
    clone = agents.start(identity="clone", data="clone")
    with pytest.raises(NodeTakenError, match="--name"):
        await asyncio.wait_for(clone.tasks[0], 10)
    node = await api.registry.get("nodes", "here")
    assert node["status"]["instance"] == "me-0"
    before = node["status"]["leaseTime"]
    await api.wait("nodes", "here", lambda obj: obj["status"]["leaseTime"] > before)


async def test_a_stopped_agents_name_is_free_and_its_engines_are_said_to_be_stopped(
    api: ApiHost, agents: Any
) -> None:
    first = agents.start()
    await api.add_engine("tiny-0", "here")
    await api.wait("engines", "tiny-0", is_ready)
    await first.stop()
    node = await api.registry.get("nodes", "here")
    assert condition(node, "Ready") == ("False", "AgentStopped")
    engine = await api.registry.get("engines", "tiny-0")
    assert (engine["status"]["phase"], engine["status"].get("pid")) == ("Stopped", None)

    agents.start(identity="other", data="other")
    await api.wait(
        "nodes", "here", lambda obj: is_ready(obj) and obj["status"]["instance"] == "other-1"
    )


async def test_a_dead_agents_name_is_taken_over_when_its_lease_has_run_out(
    api: ApiHost, agents: Any
) -> None:
    first = agents.start(lease_seconds=0.1)
    await api.wait("nodes", "here", is_ready)
    await first.crash()
    node = await api.registry.get("nodes", "here")
    status = {**node["status"], "leaseTime": "2020-01-01T00:00:00.000000Z"}
    await api.registry.replace("nodes", "here", {**node, "status": status}, subresource="status")
    agents.start(identity="other", data="other")
    await api.wait(
        "nodes", "here", lambda obj: obj["status"]["instance"] == "other-1" and is_ready(obj)
    )


async def test_a_deleted_node_object_comes_back_while_its_agent_runs(
    api: ApiHost, agents: Any
) -> None:
    agents.start()
    first = await api.wait("nodes", "here", is_ready)
    await api.registry.delete("nodes", "here")
    again = await api.wait(
        "nodes",
        "here",
        lambda obj: is_ready(obj) and obj["metadata"]["uid"] != first["metadata"]["uid"],
    )
    assert again["status"]["instance"] == "me-0"


async def test_a_guard_that_selects_the_node_moves_its_ceiling(api: ApiHost, agents: Any) -> None:
    agents.start()
    await api.wait("nodes", "here", is_ready)
    guard = {
        "apiVersion": "mlxfleet.dev/v1alpha1",
        "kind": "MemoryGuard",
        "metadata": {"name": "tight"},
        "spec": {"tier": "custom", "customCeiling": "3Gi"},
    }
    await api.registry.create("memoryguards", guard)
    limited = lambda obj: obj["status"]["ceilings"]["hardBytes"] == 3 << 30  # noqa: E731
    node = await api.wait("nodes", "here", limited)
    assert node["status"]["ceilings"]["binding"] == "dynamic"
    await api.registry.delete("memoryguards", "tight")
    await api.wait("nodes", "here", lambda obj: not limited(obj))


async def await_names(pool: EnginePool, names: list[str]) -> None:
    """Wait until exactly these engines are there."""
    changed = asyncio.Event()
    pool.on_change(changed.set)
    async with asyncio.timeout(10):
        while [view.want.name for view in pool.views()] != names:
            changed.clear()
            await changed.wait()
