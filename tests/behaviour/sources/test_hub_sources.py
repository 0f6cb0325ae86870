"""Models from a hub: downloaded once, found offline, and never fetched for a question."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from manifests.kinds.model import Source
from node_agent.sources.base import SourceError
from node_agent.sources.hub import Hub
from node_agent.sources.hub_messages import HubAction, HubRequest
from node_agent.sources.resolver import Sources
from tests.support.fake_hub import COMMIT, REPO, FakeHub, fake_hub
from tests.support.tiny_models import tiny_model

pytestmark = pytest.mark.processes


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with fake_hub(tiny_model("llama")) as server:
        yield server


def sources(hub: FakeHub, cache: Path) -> Sources:
    return Sources(Hub(cache=cache, endpoint=hub.url))


def silent(_done: int, _total: int) -> None:
    return


async def test_a_declared_hub_model_is_downloaded_and_described(
    hub: FakeHub, tmp_path: Path
) -> None:
    seen: list[tuple[int, int]] = []
    files = await sources(hub, tmp_path).resolve(
        Source(hub=REPO), lambda done, total: seen.append((done, total))
    )
    assert (files.directory / "tokenizer.json").is_file()
    assert files.shape.model_type == "llama"
    assert seen[-1][0] == seen[-1][1] > files.weights_bytes


async def test_a_second_agent_finds_the_files_without_the_network(
    hub: FakeHub, tmp_path: Path
) -> None:
    first = await sources(hub, tmp_path).resolve(Source(hub=REPO), silent)
    hub.requests.clear()
    second = await sources(hub, tmp_path).resolve(Source(hub=REPO), silent)
    assert second == first
    assert hub.requests == []


async def test_two_engines_of_one_model_share_one_download(hub: FakeHub, tmp_path: Path) -> None:
    both = sources(hub, tmp_path)
    one, two = await asyncio.gather(
        both.resolve(Source(hub=REPO), silent), both.resolve(Source(hub=REPO), silent)
    )
    assert one == two
    assert hub.weight_downloads() == 1


async def test_asking_about_a_model_downloads_no_weights(hub: FakeHub, tmp_path: Path) -> None:
    asked = sources(hub, tmp_path)
    inspection = await asked.inspect(Source(hub=REPO, revision=COMMIT))
    assert not inspection.on_disk
    assert hub.weight_downloads() == 0
    files = await asked.resolve(Source(hub=REPO, revision=COMMIT), silent)
    assert inspection.weights_bytes == files.weights_bytes
    assert inspection.shape == files.shape
    again = await asked.inspect(Source(hub=REPO, revision=COMMIT))
    assert again.on_disk
    assert again.fingerprint == files.fingerprint


@pytest.mark.parametrize(
    "source", [Source(hub="tiny/absent"), Source(hub=REPO, revision="no-such-branch")]
)
async def test_an_unknown_repository_or_revision_is_a_permanent_fault(
    hub: FakeHub, tmp_path: Path, source: Source
) -> None:
    with pytest.raises(SourceError, match="not found") as caught:
        await sources(hub, tmp_path).resolve(source, silent)
    assert caught.value.permanent
    assert caught.value.code == "SourceNotFound"


async def test_a_repository_without_safetensors_is_refused_for_good(
    hub: FakeHub, tmp_path: Path
) -> None:
    for name in [name for name in hub.files if "safetensors" in name]:
        del hub.files[name]
    with pytest.raises(SourceError, match=r"model\*\.safetensors") as caught:
        await sources(hub, tmp_path).resolve(Source(hub=REPO), silent)
    assert caught.value.permanent


async def test_a_hub_that_cannot_be_reached_may_be_tried_again(tmp_path: Path) -> None:
    with fake_hub(tiny_model("llama")) as gone:
        pass
    with pytest.raises(SourceError) as caught:
        await sources(gone, tmp_path).resolve(Source(hub=REPO), silent)
    assert not caught.value.permanent
    assert caught.value.code == "HubUnreachable"


async def test_a_download_ends_when_its_engine_is_no_longer_wanted(
    hub: FakeHub, tmp_path: Path
) -> None:
    hub.gate.clear()
    task = asyncio.create_task(sources(hub, tmp_path).resolve(Source(hub=REPO), silent))
    assert await asyncio.to_thread(hub.weights_asked.wait, 30)
    task.cancel()
    async with asyncio.timeout(10):
        with pytest.raises(asyncio.CancelledError):
            await task
    hub.gate.set()
    inspection = await sources(hub, tmp_path).inspect(Source(hub=REPO))
    assert not inspection.on_disk


def test_a_download_does_not_outlive_its_agent(hub: FakeHub, tmp_path: Path) -> None:
    hub.gate.clear()
    request = HubRequest(action=HubAction.FETCH, repo=REPO, cache=str(tmp_path), endpoint=hub.url)
    command = [sys.executable, "-m", "node_agent.sources.hub_process"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(msgspec.json.encode(request) + b"\n")
        child.stdin.flush()
        assert hub.weights_asked.wait(30)
        child.stdout.close()
        assert child.wait(10) == 1
