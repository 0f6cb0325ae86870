"""One streamed chat request to any OpenAI server, and when its tokens came.

Knows nothing of who serves. Called by peer_loads.py.
"""

import json
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import aiohttp

Message = dict[str, str]

REQUEST_SECONDS = 900.0
# Lines of a stream may be long; the default buffer would pause the reading.
READ_BYTES = 1 << 20
# One token each in most tokenizers, so that a text of n words has about n tokens.
COMMON_WORDS = """
    the a of to in and is that for it as with on be at by this from or an are was not have but
    which one all were when we there can more if out so up about into time only some could them
    see other than then now look like how after our work first well way even new want because any
    give day most find here thing many tell very call where may get make know take year good
"""
WORDS = COMMON_WORDS.split()


class RequestFailed(Exception):  # noqa: N818 - it is the request that failed
    """A server answered with an error, or with nothing."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server is, and how it names the model."""

    url: str
    model: str


@dataclass(frozen=True, slots=True)
class Ask:
    """What is sent; `ignore_eos` is a wish that not every server knows.

    With `pieces` the client leaves after so many pieces of text; usage is then unknown.
    """

    messages: tuple[Message, ...]
    output_tokens: int
    ignore_eos: bool = False
    pieces: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back, with the seconds from the request to each piece of text.

    `node` is who answered, where the server says so.
    """

    piece_seconds: tuple[float, ...]
    text: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    node: str = ""

    @property
    def ttft_seconds(self) -> float:
        """From the request to its first text."""
        return self.piece_seconds[0]

    @property
    def gaps(self) -> tuple[float, ...]:
        """The seconds between one piece of text and the next."""
        return tuple(after - before for before, after in pairwise(self.piece_seconds))


def write_text(words: int, seed: int) -> str:
    """Return a text of so many words; another seed gives another from its first words on."""
    source = random.Random(seed)
    return " ".join(source.choice(WORDS) for _ in range(words))


def user(text: str) -> Message:
    """Return a user's message."""
    return {"role": "user", "content": text}


def read_event(line: bytes) -> dict[str, Any] | None:
    """Return the object of a server-sent event, or None for anything else."""
    if not line.startswith(b"data: {"):
        return None
    event: dict[str, Any] = json.loads(line[len(b"data: ") :])
    return event


def read_piece(event: dict[str, Any]) -> str:
    """Return the text that an event brings; keep-alives and roles bring none."""
    deltas = [choice.get("delta") or {} for choice in event.get("choices") or []]
    keys = ("reasoning_content", "reasoning", "content")
    return "".join(delta.get(key) or "" for delta in deltas for key in keys)


@asynccontextmanager
async def open_session() -> AsyncIterator[aiohttp.ClientSession]:
    """Open a session without a limit on connections, and without proxies."""
    async with aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS),
        connector=aiohttp.TCPConnector(limit=0),
        read_bufsize=READ_BYTES,
        trust_env=False,
    ) as session:
        yield session


async def send(
    session: aiohttp.ClientSession,
    endpoint: Endpoint,
    ask: Ask,
    on_piece: Callable[[], None] = lambda: None,
) -> Answer:
    """Send one request and read its stream to the end.

    Raises:
        RequestFailed: The server refused, broke off, or sent no text.
    """
    body = {
        "model": endpoint.model,
        "messages": list(ask.messages),
        "max_tokens": ask.output_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **({"ignore_eos": True} if ask.ignore_eos else {}),
    }
    url = f"{endpoint.url}/v1/chat/completions"
    started = time.perf_counter()
    seconds: list[float] = []
    pieces: list[str] = []
    usage: dict[str, Any] = {}
    node = ""
    try:
        async with session.post(url, json=body) as response:
            node = response.headers.get("x-mlxfleet-node", "")
            if response.status != 200:
                raise RequestFailed(f"{response.status}: {(await response.text())[:200]}")
            async for line in response.content:
                event = read_event(line)
                if event is None:
                    continue
                if event.get("error"):
                    raise RequestFailed(str(event["error"])[:200])
                usage = event.get("usage") or usage
                piece = read_piece(event)
                if piece:
                    seconds.append(time.perf_counter() - started)
                    pieces.append(piece)
                    on_piece()
                if len(pieces) == ask.pieces:
                    break
    except (aiohttp.ClientError, TimeoutError) as fault:
        raise RequestFailed(repr(fault)) from fault
    if not seconds:
        raise RequestFailed("the stream ended without any text")
    return replace(_answer(seconds, pieces, usage), node=node)


def _answer(seconds: Sequence[float], pieces: Sequence[str], usage: dict[str, Any]) -> Answer:
    details = usage.get("prompt_tokens_details") or {}
    return Answer(
        piece_seconds=tuple(seconds),
        text="".join(pieces),
        prompt_tokens=usage.get("prompt_tokens") or 0,
        cached_tokens=details.get("cached_tokens") or 0,
        output_tokens=usage.get("completion_tokens") or len(pieces),
    )
