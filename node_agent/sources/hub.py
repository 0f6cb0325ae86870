"""Drives the hub process from the agent's loop: one child for each look-up, ended on cancel."""

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from node_agent.sources.base import SourceError
from node_agent.sources.hub_messages import (
    Found,
    HubAction,
    HubAnswer,
    HubFailed,
    HubRequest,
    Peeked,
    Progress,
)

_END_SECONDS = 5.0
_ENVIRONMENT = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
_DECODER: msgspec.json.Decoder[HubAnswer] = msgspec.json.Decoder(HubAnswer)

ProgressCallback = Callable[[int, int], None]


class Hub:
    """The model hub as this node sees it. None takes huggingface_hub's own settings."""

    def __init__(self, *, cache: Path | None = None, endpoint: str | None = None) -> None:
        self._cache = None if cache is None else str(cache)
        self._endpoint = endpoint

    async def find(self, repo: str, revision: str | None) -> Path | None:
        """Return a complete cached copy without any network. Raises: SourceError."""
        answer = await self._ask(HubAction.FIND, repo, revision, _ignore)
        return _directory(answer)

    async def peek(self, repo: str, revision: str | None) -> Peeked:
        """Return what the hub's metadata says, downloading no weights. Raises: SourceError."""
        answer = await self._ask(HubAction.PEEK, repo, revision, _ignore)
        if not isinstance(answer, Peeked):
            raise _unexpected(answer)
        return answer

    async def fetch(self, repo: str, revision: str | None, progress: ProgressCallback) -> Path:
        """Return a complete copy, downloading what is missing. Raises: SourceError."""
        directory = _directory(await self._ask(HubAction.FETCH, repo, revision, progress))
        if directory is None:
            raise _unexpected(Found(None))
        return directory

    async def _ask(
        self, action: HubAction, repo: str, revision: str | None, progress: ProgressCallback
    ) -> HubAnswer:
        request = HubRequest(
            action=action,
            repo=repo,
            revision=revision,
            cache=self._cache,
            endpoint=self._endpoint,
        )
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "node_agent.sources.hub_process"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=os.environ | _ENVIRONMENT,
        )
        try:
            return await _converse(child, request, progress)
        finally:
            await _end(child)


async def _converse(
    child: asyncio.subprocess.Process, request: HubRequest, progress: ProgressCallback
) -> HubAnswer:
    if child.stdin is None or child.stdout is None:
        raise AssertionError("the child was started with pipes")
    child.stdin.write(msgspec.json.encode(request) + b"\n")
    child.stdin.close()
    async for line in child.stdout:
        answer = _DECODER.decode(line)
        if isinstance(answer, Progress):
            progress(answer.done_bytes, answer.total_bytes)
            continue
        if isinstance(answer, HubFailed):
            raise SourceError(answer.message, permanent=answer.permanent, code=answer.code)
        return answer
    code = await child.wait()
    message = f"hub {request.repo}: the download process left with code {code}"
    raise SourceError(message, permanent=False, code="HubProcessDied")


async def _end(child: asyncio.subprocess.Process) -> None:
    """Make sure that the child is gone. Mutates: the child."""
    if child.returncode is None:
        child.terminate()
    try:
        await asyncio.wait_for(child.wait(), _END_SECONDS)
    except TimeoutError:
        child.kill()
        await child.wait()


def _directory(answer: HubAnswer) -> Path | None:
    if not isinstance(answer, Found):
        raise _unexpected(answer)
    return None if answer.directory is None else Path(answer.directory)


def _unexpected(answer: HubAnswer) -> AssertionError:
    return AssertionError(f"the hub process answered {answer!r} to another question")


def _ignore(_done_bytes: int, _total_bytes: int) -> None:
    return
