"""Building pools and wants for tests, and waiting on a pool without sleeping."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from manifests.kinds.engine import EngineSpec
from manifests.kinds.model import Source
from manifests.sizing.estimate import LayerGroup, LayerKind, ModelShape
from node_agent.engine.messages import Event, Failed, Finished, Generate, SamplingParams, Tokens
from node_agent.pool.base import EngineView, EngineWant, TokenStream
from node_agent.pool.pool import EnginePool
from node_agent.sources.base import ModelFiles

SHAPE = ModelShape(
    model_type="llama",
    groups=(LayerGroup(kind=LayerKind.FULL, layers=4, bytes_per_token=256),),
    hidden_size=64,
    intermediate_size=128,
    attention_heads=4,
    kv_heads=2,
    head_dim=16,
    vocab_size=1024,
    dtype_bytes=4,
    context_tokens=4096,
)


class FixedFiles:
    """A resolver that finds every path source where it says, at once."""

    async def resolve(self, source: Source, progress: Callable[[int, int], None]) -> ModelFiles:
        progress(1, 1)
        return ModelFiles(Path(source.path or "/nowhere"), 1 << 20, "fingerprint", SHAPE)


def make_want(name: str = "tiny-0", **changes: Any) -> EngineWant:
    """Return the want of one engine of the model `tiny`; `changes` are EngineSpec fields."""
    spec = {
        "model": "tiny",
        "node": "here",
        "revision": "1",
        "source": {"path": "/nowhere"},
        **changes,
    }
    uid = str(spec.pop("uid", "uid-" + name))
    return EngineWant(
        name=name, uid=uid, generation=1, spec=EngineSpec.model_validate_json(json.dumps(spec))
    )


async def await_view(
    pool: EnginePool,
    accept: Callable[[EngineView], bool],
    name: str = "tiny-0",
    timeout_seconds: float = 30,
) -> EngineView:
    """Wait for a view of one engine that is acceptable."""
    changed = asyncio.Event()
    pool.on_change(changed.set)
    async with asyncio.timeout(timeout_seconds):
        while True:
            for view in pool.views():
                if view.want.name == name and accept(view):
                    return view
            changed.clear()
            await changed.wait()


async def await_ready(pool: EnginePool, name: str = "tiny-0") -> EngineView:
    """Wait until an engine takes requests."""
    return await await_view(pool, lambda view: view.accepting, name)


async def await_gone(pool: EnginePool, timeout_seconds: float = 10) -> None:
    """Wait until no engine is left."""
    changed = asyncio.Event()
    pool.on_change(changed.set)
    async with asyncio.timeout(timeout_seconds):
        while pool.views():
            changed.clear()
            await changed.wait()


def greedy(request_id: str, prompt: list[int], max_tokens: int = 8, **fields: Any) -> Generate:
    """Return a greedy row."""
    sampling = SamplingParams(temperature=0)
    return Generate(
        request_id=request_id,
        prompt=prompt,
        max_tokens=max_tokens,
        **{"sampling": sampling, **fields},
    )


async def read_stream(stream: TokenStream, timeout_seconds: float = 30) -> list[Event]:
    """Read a stream to its end."""
    async with asyncio.timeout(timeout_seconds):
        return [event async for event in stream]


def token_ids(events: list[Event]) -> list[int]:
    """Return the tokens among events."""
    return [token for event in events if isinstance(event, Tokens) for token in event.ids]


def ending(events: list[Event]) -> Finished | Failed:
    """Return the one ending of a stream."""
    endings = [event for event in events if isinstance(event, Finished | Failed)]
    assert len(endings) == 1, endings
    assert events[-1] is endings[0]
    return endings[0]
