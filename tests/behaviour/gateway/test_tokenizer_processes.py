"""The gateway's tokenizer processes by themselves: how many there are, and how they end."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import psutil
import pytest

from controller.gateway.counting.tokenizer_shelf import TokenizerShelf
from controller.gateway.counting.tokenizers import PromptBody, Tokenizers
from manifests.prompt.bundle import pack_bundle
from manifests.prompt.files import read_text_files, text_fingerprint
from tests.support.gateway_host import until
from tests.support.tiny_tokenizers import write_tokenizer

pytestmark = pytest.mark.processes

SECONDS = 60.0
TEXT = PromptBody(chat=False, body=b'{"prompt":"hello world"}')


@asynccontextmanager
async def running(
    shelf: TokenizerShelf, most: int, clock: Callable[[], float]
) -> AsyncIterator[Tokenizers]:
    tokenizers = Tokenizers(most, clock)
    async with aiohttp.ClientSession() as session:
        task = asyncio.create_task(tokenizers.run(session, shelf))
        try:
            yield tokenizers
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def filled(tmp_path: Path) -> tuple[TokenizerShelf, dict[str, list[str]]]:
    """Return a shelf with two tokenizers, which nobody needs to be asked for."""
    shelf, names = TokenizerShelf(tmp_path / "shelf", 1 << 30), []
    for family in ("byte_level", "metaspace"):
        files = read_text_files(write_tokenizer(family, tmp_path / family))
        names.append(text_fingerprint(files))
        shelf.put(names[-1], pack_bundle(files), names)
    return shelf, {name: ["http://127.0.0.1:1"] for name in names}


async def test_no_more_processes_than_the_bound_and_only_an_idle_one_makes_place(
    tmp_path: Path,
) -> None:
    shelf, sources = filled(tmp_path)
    first, second = sources
    now = [1000.0]
    async with running(shelf, 1, lambda: now[0]) as tokenizers:
        tokenizers.want(sources)
        await until(lambda: tokenizers.ready(first), SECONDS)
        [pid] = tokenizers.pids().values()
        assert await tokenizers.encode(second, TEXT, wait_seconds=0.0) is None
        now[0] += 60.0
        tokenizers.want(sources)
        assert list(tokenizers.pids()) == [first], "only a prompt takes the place of another"
        assert await tokenizers.encode(first, TEXT, wait_seconds=0.0)
        now[0] += 60.0
        assert await tokenizers.encode(second, TEXT, wait_seconds=SECONDS)
        assert list(tokenizers.pids()) == [second]
        await until(lambda: not psutil.pid_exists(pid), SECONDS)
        # What no node has any more needs no process, once that has lasted.
        [pid] = tokenizers.pids().values()
        tokenizers.want(sources)
        tokenizers.want({})
        assert list(tokenizers.pids()) == [second]
        now[0] += 60.0
        tokenizers.want({})
        assert tokenizers.pids() == {}
        assert await tokenizers.encode(second, TEXT, wait_seconds=SECONDS) is None
        await until(lambda: not psutil.pid_exists(pid), SECONDS)


async def test_a_process_that_dies_with_a_prompt_in_its_hands_gives_none_at_once(
    tmp_path: Path,
) -> None:
    shelf, sources = filled(tmp_path)
    first, *_ = sources
    async with running(shelf, 1, lambda: 1000.0) as tokenizers:
        tokenizers.want({first: sources[first]})
        await until(lambda: tokenizers.ready(first), SECONDS)
        [pid] = tokenizers.pids().values()
        os.kill(pid, signal.SIGSTOP)
        asked = asyncio.create_task(tokenizers.encode(first, TEXT, wait_seconds=0.0))
        await asyncio.sleep(0)
        os.kill(pid, signal.SIGKILL)
        assert await asked is None
        assert tokenizers.pids() == {}
    assert not psutil.pid_exists(pid)
