"""One client's request over raw HTTP, read to its end or left in the middle.

Called by the run and by the retries at its end. It judges nothing but whether the bytes make sense.
"""

import asyncio
import json
import time
from dataclasses import dataclass, replace
from typing import Any

import aiohttp

from tests.torture.mix import Ask, build_body, path_of
from tests.torture.outcome import Answer, Kind, Outcome, judge_answer

# Longer than any wait the product allows itself; an answer that takes longer counts as lost.
PATIENCE_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Doors:
    """Where requests may enter."""

    gateway: str
    agent: str


def open_session() -> aiohttp.ClientSession:
    """Return a session that closes each connection, so that leaving is seen at once."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        timeout=aiohttp.ClientTimeout(total=PATIENCE_SECONDS),
        trust_env=False,
    )


async def fire(session: aiohttp.ClientSession, doors: Doors, ask: Ask) -> Outcome:
    """Send one request and return how it ended."""
    began = time.monotonic()
    url = (doors.agent if ask.direct else doors.gateway) + path_of(ask)
    try:
        async with asyncio.timeout(ask.leave_after_seconds):
            outcome = await _exchange(session, url, ask, began)
    except TimeoutError:
        left = ask.leave_after_seconds is not None
        outcome = Outcome(ask, Kind.LEFT if left else Kind.BROKEN, detail="no end in time")
    except (aiohttp.ClientError, OSError, ValueError) as fault:
        outcome = Outcome(ask, Kind.BROKEN, detail=f"{type(fault).__name__}: {fault}")
    return replace(outcome, seconds=time.monotonic() - began)


async def _exchange(session: aiohttp.ClientSession, url: str, ask: Ask, began: float) -> Outcome:
    async with session.post(url, json=build_body(ask)) as reply:
        if reply.status != 200:
            error = _error(await reply.text())
            return Outcome(ask, Kind.REFUSED, reply.status, error)
        if ask.stream:
            return await _read_stream(reply, ask, began)
        body = json.loads(await reply.text())
    usage = body.get("usage") or {}
    answer = Answer(
        tuple(choice.get("finish_reason") for choice in body["choices"]),
        usage.get("prompt_tokens"),
        usage.get("completion_tokens"),
    )
    return _answered(ask, answer, None)


def _error(text: str) -> dict[str, Any]:
    try:
        error = json.loads(text).get("error")
    except (ValueError, AttributeError):
        error = None
    return error if isinstance(error, dict) else {"message": text[:300]}


async def _read_stream(reply: aiohttp.ClientResponse, ask: Ask, began: float) -> Outcome:
    finishes: list[str] = []
    first: float | None = None
    usage: dict[str, Any] = {}
    done = False
    while line := await reply.content.readline():
        text = line.decode().strip()
        if not text.startswith("data:"):
            continue
        data = text.removeprefix("data:").strip()
        if data == "[DONE]":
            done = True
            continue
        event = json.loads(data)
        if isinstance(event.get("error"), dict):
            return Outcome(ask, Kind.CUT, 200, event["error"], first)
        usage = event.get("usage") or usage
        for choice in event.get("choices") or []:
            if first is None and (choice.get("text") or choice.get("delta")):
                first = time.monotonic() - began
            if choice.get("finish_reason"):
                finishes.append(choice["finish_reason"])
    answer = Answer(
        tuple(finishes), usage.get("prompt_tokens"), usage.get("completion_tokens"), done
    )
    return _answered(ask, answer, first)


def _answered(ask: Ask, answer: Answer, first: float | None) -> Outcome:
    wrong = judge_answer(ask, answer)
    kind = Kind.BROKEN if wrong else Kind.ANSWERED
    return Outcome(ask, kind, 200, first_token_seconds=first, detail=wrong)
