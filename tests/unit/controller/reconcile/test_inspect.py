from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

from controller.placement.fleet import NodeView, SourceFault
from controller.reconcile.inspect import HttpInspector
from manifests.kinds.model import Source
from manifests.wire.report import INSPECT_PATH, Inspection
from tests.support.placing import inspection

SOURCE = Source(path="/models/x")


@dataclass
class Agent:
    """Answers what it is told to, and counts."""

    answer: Callable[[], web.Response]
    asked: list[Any] = field(default_factory=list)
    url: str = ""

    async def handle(self, request: web.Request) -> web.Response:
        self.asked.append(await request.json())
        return self.answer()

    def view(self, instance: str = "i1") -> NodeView:
        return NodeView("n", address=self.url, instance=instance)


def knows() -> web.Response:
    return web.json_response(inspection(2, "/models/x").model_dump(mode="json", by_alias=True))


@asynccontextmanager
async def agent(answer: Callable[[], web.Response]) -> AsyncIterator[tuple[Agent, HttpInspector]]:
    known = Agent(answer)
    app = web.Application()
    app.router.add_post(INSPECT_PATH, known.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    known.url = f"http://{host}:{port}"
    async with aiohttp.ClientSession() as session:
        yield known, HttpInspector(session, fresh_seconds=30.0, clock=lambda: CLOCK[0])
    await runner.cleanup()


CLOCK = [0.0]


async def test_an_answer_is_believed_for_a_while_and_then_asked_again() -> None:
    async with agent(knows) as (known, inspector):
        await inspector.inspect((known.view(),), SOURCE)
        await inspector.inspect((known.view(),), SOURCE)
        assert known.asked == [{"path": "/models/x"}]
        CLOCK[0] += 30
        await inspector.inspect((known.view(),), SOURCE)
        assert len(known.asked) == 2
        assert isinstance(inspector.answers["n", "/models/x"], Inspection)


async def test_a_restarted_agent_is_asked_again_at_once() -> None:
    async with agent(knows) as (known, inspector):
        await inspector.inspect((known.view(),), SOURCE)
        await inspector.inspect((known.view("i2"),), SOURCE)
        assert len(known.asked) == 2


async def test_a_refusal_becomes_a_reason_and_is_asked_again_sooner() -> None:
    error = {"message": "/models/x has no config.json", "code": "not_found"}
    async with agent(lambda: web.json_response({"error": error}, status=404)) as (known, inspector):
        await inspector.inspect((known.view(),), SOURCE)
        assert inspector.answers["n", "/models/x"] == SourceFault(
            "SourceMissing", "/models/x has no config.json"
        )
        CLOCK[0] += 10
        await inspector.inspect((known.view(),), SOURCE)
        assert len(known.asked) == 2


async def test_a_page_that_is_no_inspection_is_a_reason_and_no_crash() -> None:
    for answer in (
        lambda: web.Response(text="<html>"),
        lambda: web.Response(status=500, text="boom"),
        lambda: web.json_response({"source": "x"}),
    ):
        async with agent(answer) as (known, inspector):
            await inspector.inspect((known.view(),), SOURCE)
            fault = inspector.answers["n", "/models/x"]
            assert isinstance(fault, SourceFault)
            assert fault.reason == "SourceUnknown"


async def test_a_node_that_cannot_be_reached_keeps_the_shape_that_was_known() -> None:
    async with agent(knows) as (known, inspector):
        await inspector.inspect((known.view(),), SOURCE)
        known.url = "http://127.0.0.1:9"
        await inspector.inspect((known.view("i2"),), SOURCE)
        assert isinstance(inspector.answers["n", "/models/x"], SourceFault)
        assert "/models/x" in inspector.shapes
