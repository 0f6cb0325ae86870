"""On the same figures the gateway and the node say the same of a request, to the byte."""

import asyncio
from dataclasses import dataclass, replace

from hypothesis import event, given
from hypothesis import strategies as st

from controller.gateway.choice.demand import Demand, Hold
from controller.gateway.choice.fit import describe_never, plan_fit
from controller.gateway.nodes.endpoints import EndpointView, NodeReport, plan_endpoints
from manifests.errors import Refusal, Retryable
from manifests.kinds.engine import EnginePhase
from manifests.kinds.guard import MemoryGuardSpec, Tier
from manifests.sizing.shape import LayerGroup, LayerKind, ModelShape
from manifests.units import GIB, MIB
from manifests.wire.report import EngineLoad, LoadReport
from node_agent.engine.messages import Loaded
from node_agent.host.base import HostMemory
from node_agent.memory.arbiter import Arbiter
from node_agent.memory.base import AdmissionRequest
from node_agent.memory.reading import EngineUse
from node_agent.pool.base import EngineView
from node_agent.sources.base import ModelFiles
from node_agent.sync.figures import observe_room
from tests.support.pools import make_want

CONTEXT = 200_000
KINDS = (LayerKind.FULL, LayerKind.SLIDING, LayerKind.MLA)


@st.composite
def shapes(draw: st.DrawFn) -> ModelShape:
    kind = draw(st.sampled_from(KINDS))
    group = LayerGroup(
        kind=kind,
        layers=draw(st.integers(1, 60)),
        bytes_per_token=draw(st.integers(64, 16_384)),
        window_tokens=draw(st.integers(1, 8192)) if kind is LayerKind.SLIDING else None,
    )
    return ModelShape(
        model_type="any",
        groups=(group,),
        hidden_size=draw(st.integers(64, 8192)),
        intermediate_size=draw(st.integers(64, 30_000)),
        attention_heads=draw(st.integers(1, 64)),
        kv_heads=8,
        head_dim=draw(st.sampled_from([64, 72, 128])),
        vocab_size=draw(st.integers(1000, 300_000)),
        dtype_bytes=2,
        context_tokens=CONTEXT,
    )


@dataclass(frozen=True)
class World:
    """A node in some state, one engine of it, and a request."""

    arbiter: Arbiter
    view: EngineView
    demand: Demand
    shape: ModelShape
    chunk_tokens: int

    def request(self) -> AdmissionRequest:
        """Return the request as serving puts it to the arbiter."""
        return AdmissionRequest(
            engine="tiny-0",
            model="m",
            shape=self.shape,
            prompt_tokens=self.demand.prompt_tokens,
            cached_tokens=0,
            max_tokens=min(self.demand.output_tokens, CONTEXT - self.demand.prompt_tokens),
            rows=self.demand.rows,
            chunk_tokens=self.chunk_tokens,
        )

    def reported(self) -> EndpointView:
        """Return what a gateway knows of it, by way of the wire."""
        load = EngineLoad(
            name="tiny-0",
            model="m",
            phase=EnginePhase.READY,
            accepting=True,
            context_tokens=CONTEXT,
            room=observe_room(self.arbiter, self.view),
            shape=self.shape,
        )
        report = LoadReport(node="n", instance="i", sequence=1, accepting=True, engines=(load,))
        text = report.model_dump_json(by_alias=True)
        seen = NodeReport("n", "http://n", LoadReport.model_validate_json(text), 1.0, routable=True)
        return plan_endpoints(seen)[0]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    sizes = st.integers(0, 64 * 1024).map(lambda mib: mib * MIB)
    free, others, weights = draw(sizes), draw(sizes), draw(st.integers(1, 8 * 1024)) * MIB
    grown = draw(st.integers(0, 2 * 1024)) * MIB
    tier = draw(st.sampled_from([tier for tier in Tier if tier is not Tier.CUSTOM]))
    arbiter = Arbiter(MemoryGuardSpec.model_validate({"tier": tier}), fused=draw(st.booleans()))
    uses = (
        EngineUse("tiny-0", 7, weights, weights, weights),
        EngineUse("other-0", 8, GIB, GIB, GIB),
    )
    wired = draw(st.none() | st.integers(1, 96).map(lambda gib: gib * GIB))
    ratio = draw(st.sampled_from([1.0, 0.9]))
    ram = free + others + weights + 16 * GIB
    host = HostMemory(ram, free, 0, others, wired_limit_bytes=wired, ceiling_ratio=ratio)
    arbiter.observe(host, uses)
    busy = replace(uses[0], footprint_bytes=weights + grown, busy=grown > 0)
    arbiter.observe(host, (busy, uses[1]))
    if draw(st.booleans()):
        asyncio.run(arbiter.admit_load("other-0", draw(st.integers(0, 4096)) * MIB))
    for _ in range(draw(st.integers(0, 3))):
        arbiter.lessons.note("tiny-0", 100 * MIB, draw(st.integers(50, 400)) * MIB)
    shape, chunk = draw(shapes()), draw(st.sampled_from([64, 100, 512, 2048]))
    view = EngineView(
        make_want(),
        EnginePhase.READY,
        files=ModelFiles("/nowhere", weights, "f", shape),  # type: ignore[arg-type]
        loaded=Loaded(device="cpu", mlx_version="0", chunk_tokens=chunk, active_bytes=weights),
        pid=7,
        making_progress=True,
    )
    demand = Demand(
        prompt_tokens=draw(st.integers(1, CONTEXT - 1)),
        output_tokens=draw(st.integers(1, 4096)),
        exact=True,
        rows=draw(st.integers(1, 4)),
    )
    return World(arbiter, view, demand, shape, chunk)


@given(worlds())
def test_the_gateways_verdict_is_the_nodes(world: World) -> None:
    endpoint = world.reported()
    fit = plan_fit(endpoint, world.demand)
    answer = asyncio.run(world.arbiter.admit(world.request()))
    assert fit.known
    if not isinstance(answer, Refusal):
        event("fits")
        assert fit.fits_now
        assert fit.fits_ever
        return
    event(answer.retryable.value)
    assert not fit.fits_now
    assert fit.never == (answer.retryable is Retryable.NO)
    assert fit.need_bytes == answer.estimated_bytes
    if fit.never:
        # The same words too: need, limit, ceiling, advice and the longest prompt that fits.
        assert describe_never(endpoint, world.demand) == answer
        assert fit.ever_bytes == answer.limit_bytes


@given(worlds(), st.integers(0, 8 * GIB))
def test_what_we_sent_ourselves_is_gone_from_what_there_is(world: World, held: int) -> None:
    endpoint = world.reported()
    free = plan_fit(endpoint, world.demand)
    less = plan_fit(endpoint, world.demand, Hold(requests=1, unseen_requests=1, unseen_bytes=held))
    assert less.have_bytes == max(0, free.have_bytes - held) or free.have_bytes == 0
    assert less.never == free.never
    if less.fits_now:
        assert less.need_bytes + held <= free.have_bytes
