"""What is wrong with a machine reaches its node object and its events; a person clears it."""

import time
from typing import Any

import aiohttp
import pytest

from manifests.kinds.node import NodeInfo
from manifests.wire.listwatch import RawObject
from node_agent.host.base import KernelPanic, PanicScan
from node_agent.host.detect import detect_host
from node_agent.memory.books import MemoryState
from node_agent.sync.client import ApiClient, ClientTimeouts
from node_agent.sync.conditions import NodeNow
from node_agent.sync.lease import LeaseKeeper, NodeSources
from node_agent.sync.panics_plan import CLEAR_ANNOTATION
from node_agent.sync.register import NodeFacts
from tests.support.api_host import ApiHost, condition
from tests.support.pools import await_ready

pytestmark = pytest.mark.processes

GIB = 1 << 30


def has(type_: str, status: str) -> Any:
    return lambda obj: condition(obj, type_)[0] == status


async def told(api: ApiHost, reason: str) -> RawObject:
    return await api.wait_any("events", lambda obj: obj["reason"] == reason)


async def test_a_panic_of_ours_lowers_the_ceilings_until_a_person_clears_it(
    api: ApiHost, agents: Any
) -> None:
    side = agents.start()
    await api.wait("nodes", "here", has("PanicHistory", "False"))
    boot = detect_host().info().boot_id.upper()
    panic = KernelPanic(boot, '"underflow" @IOGPUMemory.cpp:550', "python3.12", time.time() - 60)
    side.host.set_panics(PanicScan((panic,)))
    await side.guard.panics.scan()
    node = await api.wait("nodes", "here", has("PanicHistory", "True"))
    lowered = lambda obj: obj["status"]["ceilings"]["hardBytes"] == int(0.9 * 12 * GIB)  # noqa: E731
    node = await api.wait("nodes", "here", lowered)
    assert node["status"]["guard"]["ceilingRatio"] == 0.9
    event = await told(api, "PanicHistory")
    assert event["involvedObject"]["uid"] == node["metadata"]["uid"]
    assert "IOGPUMemory" in event["message"]

    patch = {"metadata": {"annotations": {CLEAR_ANNOTATION: "new cable"}}}
    await api.registry.patch("nodes", "here", patch)
    await api.wait("nodes", "here", has("PanicHistory", "False"))
    await api.wait("nodes", "here", lambda obj: obj["status"]["ceilings"]["hardBytes"] == 12 * GIB)


async def test_a_node_is_known_by_its_uid_before_it_is_listed(api: ApiHost) -> None:
    facts = NodeFacts("here", "me", "i1", "http://127.0.0.1:9", NodeInfo(os="linux"))
    known: list[str] = []
    async with aiohttp.ClientSession() as session:
        client = ApiClient(api.url, session, ClientTimeouts(1, 2, 5, 2))
        sources = NodeSources(
            lambda: NodeNow(MemoryState(), 0), wrote=lambda *_: known.append(keeper.node_uid)
        )
        keeper = LeaseKeeper(client, facts, sources)
        assert keeper.node_uid == ""
        await keeper.renew()
    node = await api.wait("nodes", "here", has("Ready", "True"))
    assert known == [node["metadata"]["uid"]]


async def test_reports_that_cannot_be_read_are_unknown(api: ApiHost, agents: Any) -> None:
    side = agents.start()
    await api.wait("nodes", "here", has("Ready", "True"))
    side.host.set_panics(PanicScan(fault="/Library/Logs: Permission denied"))
    await side.guard.panics.scan()
    await api.wait("nodes", "here", has("PanicHistory", "Unknown"))


async def test_memory_that_stays_wired_after_an_engine_asks_for_a_reboot(
    api: ApiHost, agents: Any
) -> None:
    side = agents.start()
    await side.guard.monitor.sample()
    await api.add_engine("tiny-0", "here")
    await await_ready(side.pool)
    await side.guard.monitor.sample()
    side.host.set_stranded_bytes(4 * GIB)
    await api.registry.delete("engines", "tiny-0")
    await api.wait("engines", "tiny-0", lambda obj: obj is None)
    await side.guard.monitor.sample()
    assert side.guard.monitor.stranded == ()
    side.clock.ahead_seconds = 60.0
    await side.guard.monitor.sample()
    node = await api.wait("nodes", "here", has("RebootNeeded", "True"))
    assert "tiny-0" in str(node["status"]["conditions"])
    assert (await told(api, "RebootNeeded"))["type"] == "Warning"
    side.host.set_stranded_bytes(0)
    await side.guard.monitor.sample()
    await api.wait("nodes", "here", has("RebootNeeded", "False"))


async def test_a_gpu_limit_that_is_raised_clears_the_advice(api: ApiHost, agents: Any) -> None:
    side = agents.start()
    side.host.set_wired_limit_bytes(8 * GIB)
    side.guard.monitor.wake()
    await api.wait("nodes", "here", has("WiredLimitLow", "True"))
    assert "iogpu.wired_limit_mb=12288" in (await told(api, "WiredLimitLow"))["message"]
    side.host.set_wired_limit_bytes(12 * GIB)
    side.guard.monitor.wake()
    await api.wait("nodes", "here", has("WiredLimitLow", "False"))
