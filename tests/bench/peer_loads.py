"""The work that is sent to each server: many at once, agents, a long prompt, a restart.

The same prompts for every server of a run, others in every run. Returns plain figures; judges
nothing. Called by peers.py.
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import aiohttp

from tests.bench.peer_clients import (
    Answer,
    Ask,
    Endpoint,
    Message,
    RequestFailed,
    open_session,
    send,
    user,
    write_text,
)

# Streams are running once each has brought so many pieces.
SETTLE_PIECES = 8
# What a server may take to write its cache down before it is restarted.
WRITE_SECONDS = 3.0
# As in a chat that asks again: the number and what the template puts behind it is new.
ENDING = " question {}"

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is asked, in tokens unless named otherwise."""

    rounds: tuple[tuple[int, int], ...] = ((1, 2), (4, 1), (8, 1))  # (at once, how often)
    prompt: int = 500
    output: int = 48
    sessions: int = 4
    turns: int = 5
    system: int = 900
    turn: int = 60
    reply: int = 24
    stream: int = 120
    long: int = 2800
    restart: int = 970
    repeat: int = 1350
    repeat_texts: int = 3


QUICK = Sizes(
    rounds=((1, 1), (2, 1)),
    prompt=60,
    output=6,
    sessions=2,
    turns=2,
    system=80,
    turn=10,
    reply=4,
    stream=30,
    long=300,
    restart=300,
    repeat=300,
    repeat_texts=2,
)


@dataclass(frozen=True, slots=True)
class Load:
    """Where the work goes, how much it is, and the seed of its texts."""

    endpoint: Endpoint
    sizes: Sizes
    seed: int


def percentile(values: Sequence[float], ratio: float) -> float:
    """Return the value that so large a part of the values stays below."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(ratio * len(ordered)))]


async def warm_up(session: aiohttp.ClientSession, endpoint: Endpoint) -> None:
    """Send one small request, so that no figure holds what only the first one costs."""
    await send(session, endpoint, Ask((user("hello"),), 4))


async def load_serve(load: Load) -> Figures:
    """Send distinct prompts, several at once: output tokens a second, the prompts' time in it."""
    figures: Figures = {}
    async with open_session() as session:
        await warm_up(session, load.endpoint)
        for at_once, rounds in load.sizes.rounds:
            started = time.perf_counter()
            answers: list[Answer] = []
            for turn in range(rounds):
                seeds = [load.seed + 1000 * at_once + 100 * turn + row for row in range(at_once)]
                asks = [_serve_ask(load.sizes, seed) for seed in seeds]
                answers += await asyncio.gather(
                    *(send(session, load.endpoint, ask) for ask in asks)
                )
            seconds = time.perf_counter() - started
            ttft = [answer.ttft_seconds for answer in answers]
            output = sum(answer.output_tokens for answer in answers)
            figures[f"tok_s_{at_once}"] = output / seconds
            figures[f"ttft_p50_{at_once}"] = statistics.median(ttft)
            figures["prompt_tokens"] = answers[0].prompt_tokens
    return figures


async def load_agents(load: Load) -> Figures:
    """Run conversations that share a system prompt, all at once, each turn with its history."""
    sizes = load.sizes
    system = {"role": "system", "content": write_text(sizes.system, load.seed)}
    async with open_session() as session:
        await warm_up(session, load.endpoint)
        started = time.perf_counter()
        conversations = await asyncio.gather(
            *(_converse(session, load, system, number) for number in range(sizes.sessions))
        )
        wall = time.perf_counter() - started
    answers = [answer for answers in conversations for answer in answers]
    ttft = [answer.ttft_seconds for answer in answers]
    prompt = sum(answer.prompt_tokens for answer in answers)
    return {
        "wall": wall,
        "ttft_p50": percentile(ttft, 0.5),
        "ttft_p95": percentile(ttft, 0.95),
        "gap_p95": percentile([gap for answer in answers for gap in answer.gaps], 0.95),
        "cached_ratio": sum(answer.cached_tokens for answer in answers) / max(1, prompt),
    }


async def load_stall(load: Load) -> Figures:
    """Let two streams run, then send a long prompt: the streams' worst gap, the prompt's TTFT."""
    sizes = load.sizes
    running = _Count(2 * SETTLE_PIECES)
    asks = [
        Ask(
            (user(f"Count from one to three hundred in words. {write_text(10, load.seed + row)}"),),
            sizes.stream,
            ignore_eos=True,
        )
        for row in range(2)
    ]
    long = Ask((user(write_text(sizes.long, load.seed + 9)),), 8)
    async with open_session() as session:
        await warm_up(session, load.endpoint)
        streams = [
            asyncio.create_task(send(session, load.endpoint, ask, running.add)) for ask in asks
        ]
        reached = asyncio.create_task(running.reached.wait())
        # A stream that fails ends the wait too, and its error is raised here.
        await asyncio.wait([reached, *streams], return_when=asyncio.FIRST_COMPLETED)
        reached.cancel()
        for stream in streams:
            if stream.done():
                stream.result()
        long_answer = await send(session, load.endpoint, long)
        gaps = [gap for answer in await asyncio.gather(*streams) for gap in answer.gaps]
    return {
        "worst_gap": max(gaps),
        "gap_p50": percentile(gaps, 0.5),
        "long_ttft": long_answer.ttft_seconds,
        "long_prompt_tokens": long_answer.prompt_tokens,
    }


async def load_prefix(
    load: Load, restart: Callable[[], Awaitable[None]], write_seconds: float = WRITE_SECONDS
) -> Figures:
    """Time a prompt after a restart that keeps the disk, then others with other endings."""
    sizes = load.sizes
    restarted = Ask((user(write_text(sizes.restart, load.seed + 2)),), 8)
    async with open_session() as session:
        await warm_up(session, load.endpoint)
        cold = await send(session, load.endpoint, restarted)
        await asyncio.sleep(write_seconds)
    await restart()
    async with open_session() as session:
        await warm_up(session, load.endpoint)
        back = await send(session, load.endpoint, restarted)
        endings = await _ask_with_endings(session, load)
    return endings | {
        "restart_cold": cold.ttft_seconds,
        "restart_back": back.ttft_seconds,
        "restart_prompt_tokens": back.prompt_tokens,
        "restart_cached_tokens": back.cached_tokens,
        "same_text": float(cold.text == back.text),
    }


async def _ask_with_endings(session: aiohttp.ClientSession, load: Load) -> Figures:
    """Ask about each of several texts three times, with another ending each time.

    What takes 0.2 s differs by a quarter from one time to the next, so these are medians.
    """
    asked: list[list[Answer]] = []
    for number in range(load.sizes.repeat_texts):
        text = write_text(load.sizes.repeat, load.seed + 10 + number)
        asked.append(
            [
                await send(session, load.endpoint, Ask((user(text + ENDING.format(turn)),), 8))
                for turn in range(3)
            ]
        )
    first, second, third = (
        statistics.median(turns[at].ttft_seconds for turns in asked) for at in range(3)
    )
    return {
        "repeat_cold": first,
        "repeat_second": second,
        "repeat_third": third,
        "repeat_prompt_tokens": asked[-1][0].prompt_tokens,
        "repeat_cached_tokens": asked[-1][1].cached_tokens,
    }


async def await_answer(endpoint: Endpoint, is_alive: Callable[[], bool], seconds: float) -> None:
    """Ask again until the server answers; it may still be starting.

    Raises:
        RequestFailed: It has ended, or did not answer in time.
    """
    deadline = time.monotonic() + seconds
    async with open_session() as session:
        while True:
            try:
                await warm_up(session, endpoint)
            except RequestFailed as fault:
                if not is_alive():
                    raise RequestFailed("it ended while starting") from fault
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.2)
            else:
                return


async def _converse(
    session: aiohttp.ClientSession, load: Load, system: Message, number: int
) -> list[Answer]:
    messages = [system]
    answers = []
    for turn in range(load.sizes.turns):
        messages.append(user(write_text(load.sizes.turn, load.seed + 100 * number + turn + 1)))
        answer = await send(session, load.endpoint, Ask(tuple(messages), load.sizes.reply))
        answers.append(answer)
        messages.append({"role": "assistant", "content": answer.text})
    return answers


def _serve_ask(sizes: Sizes, seed: int) -> Ask:
    return Ask((user(write_text(sizes.prompt, seed)),), sizes.output, ignore_eos=True)


class _Count:
    """Sets `reached` at the wanted number."""

    def __init__(self, wanted: int) -> None:
        self._left = wanted
        self.reached = asyncio.Event()

    def add(self) -> None:
        """Count one."""
        self._left -= 1
        if self._left == 0:
            self.reached.set()
