import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from openai import AsyncOpenAI
from prometheus_client import CollectorRegistry

from manifests.kinds.model import Source
from manifests.wire.report import Inspection, LoadReport
from node_agent.api.build import ApiParts, NodeApi, build_api
from node_agent.sources.base import SourceError
from tests.support.asgi_server import serve_asgi
from tests.support.local_text import LocalText, LocalTexts, local_text
from tests.support.scripted_pool import (
    Script,
    ScriptedAdmission,
    ScriptedPool,
    scripted_shape,
    scripted_view,
)
from tests.support.tiny_tokenizers import write_tokenizer


class ScriptedLoad:
    sequence = 0

    def report(self) -> LoadReport:
        self.sequence += 1
        return LoadReport(node="n", instance="i", sequence=self.sequence, accepting=True)


class ScriptedInspector:
    async def inspect(self, source: Source) -> Inspection:
        if source.path != "/models/tiny":
            raise SourceError("There is no such model on this node.")
        return Inspection(
            source=source.text, weights_bytes=5, fingerprint="f", shape=scripted_shape()
        )


@dataclass
class Agent:
    """One agent's HTTP side over a scripted pool, with clients for it."""

    port: int
    pool: ScriptedPool
    admission: ScriptedAdmission
    api: NodeApi
    text: LocalText
    openai: AsyncOpenAI
    http: httpx.AsyncClient
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def samples(self) -> dict[tuple[str, tuple[str, ...]], float]:
        """Return every metric by name and label values."""
        return {
            (sample.name, tuple(sample.labels.values())): sample.value
            for metric in self.registry.collect()
            for sample in metric.samples
        }


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer("byte_level", tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
async def start_agent(model_directory: Path) -> AsyncIterator[Callable[..., Awaitable[Agent]]]:
    """Start agents with a script; each is stopped at the test's end."""
    async with AsyncExitStack() as stack:

        async def start(script: Script, **options: object) -> Agent:
            spec = options.pop("spec", {})
            assert isinstance(spec, dict)
            pool = ScriptedPool([scripted_view(model_directory, **spec)], script)
            admission = ScriptedAdmission()
            registry = CollectorRegistry()
            parts = ApiParts(
                pool=pool,
                admission=admission,
                texts=LocalTexts(),
                inspector=ScriptedInspector(),
                load=ScriptedLoad(),
                registry=registry,
                epoch=time.time,
                **{"monotonic": time.monotonic, **options},  # type: ignore[arg-type]
            )
            api = build_api(parts)
            port = await stack.enter_async_context(serve_asgi(api.asgi))
            stack.callback(api.close)
            url = f"http://127.0.0.1:{port}"
            openai = AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0)
            http = httpx.AsyncClient(base_url=url)
            stack.push_async_callback(openai.close)
            stack.push_async_callback(http.aclose)
            text = local_text(model_directory)
            return Agent(port, pool, admission, api, text, openai, http, registry)

        yield start
