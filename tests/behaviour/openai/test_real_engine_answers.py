"""The whole node for real: engine process with MLX, tokenizer process, arbiter, HTTP."""

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI
from prometheus_client import CollectorRegistry

from manifests.kinds.guard import MemoryGuardSpec
from node_agent.api.build import ApiParts, build_api
from node_agent.host.blas import find_openblas
from node_agent.host.detect import detect_host
from node_agent.memory.arbiter import Arbiter
from node_agent.monitor import Monitor
from node_agent.pool.pool import EnginePool
from node_agent.pool.process import Launcher
from node_agent.pool.settings import PoolSettings
from node_agent.sources.resolver import Sources
from node_agent.sync.load import LoadSource
from node_agent.text.models import TokenizerPool
from tests.support.asgi_server import serve_asgi
from tests.support.pools import await_ready, make_want
from tests.support.tiny_models import tiny_model

HI: Any = [{"role": "user", "content": "Tell me."}]

pytestmark = pytest.mark.processes


@dataclass
class Node:
    openai: AsyncOpenAI
    arbiter: Arbiter

    async def text(self, **fields: Any) -> str:
        """Return one answer's text, the whole way or streamed."""
        answer = await self.openai.chat.completions.create(model="tiny", messages=HI, **fields)
        if not fields.get("stream"):
            return str(answer.choices[0].message.content)
        parts = [chunk.choices[0].delta.content or "" async for chunk in answer]
        return "".join(parts)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    sources, texts = Sources(), TokenizerPool()
    launcher = Launcher(preload=find_openblas())
    pool = EnginePool(PoolSettings(log_directory=tmp_path, launcher=launcher), sources)
    arbiter = Arbiter(MemoryGuardSpec())
    registry = CollectorRegistry()
    api = build_api(
        ApiParts(
            pool=pool,
            admission=arbiter,
            texts=texts,
            inspector=sources,
            load=LoadSource("n", "i", pool, arbiter),
            registry=registry,
            monotonic=time.monotonic,
            epoch=time.time,
        )
    )
    monitor = Monitor(detect_host(), pool, arbiter, api.changes.ring)
    pool.set_wanted({"tiny-0": make_want(source={"path": str(tiny_model("llama"))})})
    try:
        await await_ready(pool)
        await monitor.sample()
        async with serve_asgi(api.asgi) as port:
            client = AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="k", max_retries=0)
            async with client:
                yield Node(client, arbiter)
            api.close()
    finally:
        await pool.close(0)
        await texts.close()


async def test_a_real_engine_answers_the_same_streamed_and_whole(node: Node) -> None:
    """B08, B13, B25, B27: greedy text is one text; stops cut it; seeds repeat."""
    whole = await node.text(temperature=0, max_tokens=24)
    assert len(whole) > 10
    assert await node.text(temperature=0, max_tokens=24, stream=True) == whole
    stop = whole[6:9]
    expected = whole[: whole.index(stop)]
    for stream in (False, True):
        assert await node.text(temperature=0, max_tokens=24, stop=stop, stream=stream) == expected
    seeded = [await node.text(seed=seed, max_tokens=12) for seed in (1, 1, 2)]
    assert seeded[0] == seeded[1] != seeded[2]
    answer = await node.openai.chat.completions.create(
        model="tiny", messages=HI, n=3, seed=1, max_tokens=12, logprobs=True, top_logprobs=2
    )
    texts = [str(choice.message.content) for choice in answer.choices]
    assert len(set(texts)) == 3
    for choice in answer.choices:
        assert choice.logprobs is not None
        content = choice.logprobs.content or []
        data = b"".join(bytes(item.bytes or []) for item in content)
        assert data.decode(errors="replace") == choice.message.content
    assert node.arbiter.state().reserved_bytes == 0
