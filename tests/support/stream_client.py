"""A client of one event stream that notices everything by which a moved stream could differ."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp


@dataclass
class Heard:
    """What a client has of one stream so far."""

    node: str = ""
    texts: dict[int, str] = field(default_factory=dict)
    thoughts: dict[int, str] = field(default_factory=dict)
    roles: dict[int, int] = field(default_factory=dict)
    reasons: dict[int, list[str]] = field(default_factory=dict)
    names: set[tuple[str, int, str, str]] = field(default_factory=set)
    usages: list[dict[str, Any]] = field(default_factory=list)
    errors: list[dict[str, Any]] = field(default_factory=list)
    pieces: int = 0
    dones: int = 0
    comments: list[str] = field(default_factory=list)
    cut: bool = False

    @property
    def running(self) -> bool:
        """Whether text has come and more is to come."""
        return self.pieces >= 3 and not self.over

    @property
    def over(self) -> bool:
        """Whether nothing more comes."""
        return bool(self.dones or self.errors or self.cut)

    def take(self, line: str) -> None:
        """Note one line."""
        if line.startswith(":"):
            self.comments.append(line)
        if not line.startswith("data: "):
            return
        if line == "data: [DONE]":
            self.dones += 1
            return
        chunk = json.loads(line[6:])
        if "error" in chunk:
            self.errors.append(chunk["error"])
            return
        name = (chunk["id"], chunk["created"], chunk["model"], chunk.get("system_fingerprint", ""))
        self.names.add(name)
        if chunk.get("usage"):
            self.usages.append(chunk["usage"])
        for choice in chunk["choices"]:
            self._take_choice(choice["index"], choice)

    def _take_choice(self, index: int, choice: dict[str, Any]) -> None:
        delta = choice.get("delta", choice)
        text = delta.get("content") or delta.get("text") or ""
        self.texts[index] = self.texts.get(index, "") + text
        thought = delta.get("reasoning_content") or ""
        self.thoughts[index] = self.thoughts.get(index, "") + thought
        self.roles[index] = self.roles.get(index, 0) + ("role" in delta)
        self.pieces += bool(text or thought)
        if choice["finish_reason"]:
            self.reasons.setdefault(index, []).append(choice["finish_reason"])

    def told_once(self) -> tuple[Any, ...]:
        """Return what must be the same for a stream that moved and one that did not."""
        assert not self.errors, self.errors
        assert not self.cut
        assert self.dones == 1
        assert len(self.names) == 1
        counted = [(u["prompt_tokens"], u["completion_tokens"]) for u in self.usages]
        return self.texts, self.thoughts, self.roles, self.reasons, counted


async def listen(
    session: aiohttp.ClientSession,
    url: str,
    body: dict[str, Any],
    heard: Heard,
    changed: Callable[[], None] = lambda: None,
) -> Heard:
    """Post a request and read its stream to the end; `changed` is called after every read."""
    asked = {"stream": True, "stream_options": {"include_usage": True}, **body}
    path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
    pending = ""
    try:
        async with session.post(url + path, json=asked) as answer:
            if answer.status != 200:
                heard.errors.append({"status": answer.status, "body": await answer.text()})
            else:
                heard.node = answer.headers.get("x-mlxfleet-node", "")
                async for data in answer.content.iter_any():
                    *lines, pending = (pending + data.decode()).split("\n")
                    for line in lines:
                        heard.take(line)
                    changed()
    except aiohttp.ClientError:
        heard.cut = not heard.errors
    changed()
    return heard


class Crowd:
    """Many streams at once, and the moment when they are under way."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self._url = session, url
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[Heard]] = []
        self.heard: list[Heard] = []

    def start(self, bodies: list[dict[str, Any]]) -> None:
        """Begin one stream for each body."""
        for body in bodies:
            heard = Heard()
            self.heard.append(heard)
            reading = listen(self._session, self._url, body, heard, self._changed.set)
            self._tasks.append(asyncio.create_task(reading))

    async def until(self, holds: Callable[["Crowd"], Any], seconds: float = 60.0) -> None:
        """Return once a condition holds; it is looked at whenever something came."""
        async with asyncio.timeout(seconds):
            while not holds(self):
                self._changed.clear()
                await self._changed.wait()

    async def ended(self, seconds: float = 90.0) -> list[Heard]:
        """Return what each stream said."""
        async with asyncio.timeout(seconds):
            return list(await asyncio.gather(*self._tasks))
