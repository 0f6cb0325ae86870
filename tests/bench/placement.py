"""Where requests go in a fleet of unequal nodes: `python -m tests.bench.placement`.

Four real agents, each declared twice as large as the one before or nearly so, serve one small
model. The same seeded workload goes through the gateway and through the two routers of
plain_routers.py, each time to fresh agents: conversations that share a beginning, short questions,
and long prompts that only the two larger nodes can hold. All nodes share this machine's cores, so
what differs in time is what had to be computed and where it waited.
"""

import asyncio
import random
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import httpx

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
from tests.bench.plain_routers import ROUTERS, running_router
from tests.support.fleet import Fleet, eventually, running_fleet
from tests.support.tiny_models import tiny_model

OURS = "gateway"
MODEL = "tiny"
LIMITS = {"node-16": "304Mi", "node-32": "320Mi", "node-64": "512Mi", "node-128": "832Mi"}
SEED = 11
CONVERSATIONS, TURNS = 4, 3
SYSTEM_WORDS, TURN_WORDS = 300, 50
SHORT, SHORT_WORDS = 12, 40
LONG, LONG_WORDS = 2, 1600
ANSWER_TOKENS = 12
# Short and long prompts arrive in this time, conversations begin in its first quarter.
ARRIVALS_SECONDS = 20.0
THINK_SECONDS = 0.5
BEST_TTFT_RATIO = 0.5

TALK, BRIEF, BULKY = "multi-turn", "short", "long"


@dataclass(slots=True)
class Tally:
    """What became of one kind of request."""

    answers: list[Answer] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def ttft(self) -> list[float]:
        """The seconds to each first text."""
        return [answer.ttft_seconds for answer in self.answers]


@dataclass(slots=True)
class Outcome:
    """What one router made of the workload."""

    tallies: dict[str, Tally] = field(
        default_factory=lambda: {kind: Tally() for kind in (TALK, BRIEF, BULKY)}
    )
    node_refusals: int = 0


@dataclass(frozen=True, slots=True)
class Client:
    """Sends to one router and keeps what comes back."""

    session: aiohttp.ClientSession
    url: str
    outcome: Outcome

    async def ask(self, kind: str, messages: Sequence[Message]) -> str | None:
        """Send one request; its text, or None when it failed."""
        tally = self.outcome.tallies[kind]
        ask = Ask(tuple(messages), ANSWER_TOKENS, ignore_eos=True)
        try:
            answer = await send(self.session, Endpoint(self.url, MODEL), ask)
        except RequestFailed as fault:
            tally.faults.append(str(fault))
            return None
        tally.answers.append(answer)
        return answer.text

    async def talk(self, number: int, start_seconds: float) -> None:
        """Hold one conversation; a turn that is refused ends it, and the rest counts as refused."""
        await asyncio.sleep(start_seconds)
        messages = [{"role": "system", "content": write_text(SYSTEM_WORDS, seed=1)}]
        for turn in range(TURNS):
            messages.append(user(write_text(TURN_WORDS, seed=1000 + 100 * number + turn)))
            text = await self.ask(TALK, messages)
            if text is None:
                left = TURNS - turn - 1
                self.outcome.tallies[TALK].faults += ["the turn before was refused"] * left
                return
            messages.append({"role": "assistant", "content": text})
            await asyncio.sleep(THINK_SECONDS)

    async def single(self, kind: str, words: int, seed: int, start_seconds: float) -> None:
        """Send one prompt of its own."""
        await asyncio.sleep(start_seconds)
        await self.ask(kind, [user(write_text(words, seed))])


async def run_workload(url: str, outcome: Outcome) -> None:
    """Send the workload to one router: the same texts at the same times for each."""
    source = random.Random(SEED)
    async with open_session() as session:
        client = Client(session, url, outcome)
        async with asyncio.TaskGroup() as group:
            for number in range(CONVERSATIONS):
                start = source.uniform(0, ARRIVALS_SECONDS / 4)
                group.create_task(client.talk(number, start))
            for number in range(SHORT):
                start = source.uniform(0, ARRIVALS_SECONDS)
                group.create_task(client.single(BRIEF, SHORT_WORDS, 5000 + number, start))
            for number in range(LONG):
                start = source.uniform(0, ARRIVALS_SECONDS)
                group.create_task(client.single(BULKY, LONG_WORDS, 7000 + number, start))


@asynccontextmanager
async def running_door(name: str, fleet: Fleet) -> AsyncIterator[str]:
    """Open one router before the fleet's agents; its URL."""
    if name == OURS:
        yield fleet.url
        return
    async with running_router(name, [agent.url for agent in fleet.agents.values()]) as url:
        yield url


def count_node_refusals(fleet: Fleet) -> int:
    """Return how many prompts the agents refused for want of memory."""
    found = 0.0
    for agent in fleet.agents.values():
        page = httpx.get(agent.url + "/metrics", timeout=30, trust_env=False).text
        found += sum(
            float(line.rsplit(" ", 1)[1])
            for line in page.splitlines()
            if line.startswith("mlxfleet_node_memory_admissions_total{")
            and 'kind="prefill"' in line
            and 'outcome="admitted"' not in line
        )
    return round(found)


def count_known(fleet: Fleet) -> int:
    """Return how many nodes the gateway knows the room of."""
    body = {"model": MODEL, "prompt": [7] * 10, "max_tokens": 1}
    told = httpx.post(fleet.url + "/fleet/v1/explain", json=body, timeout=30, trust_env=False)
    return sum(item["known"] for item in told.json().get("candidates", []))


def measure(name: str) -> Outcome:
    """Run the workload through one router and fresh agents."""
    outcome = Outcome()
    with (
        tempfile.TemporaryDirectory() as directory,
        running_fleet(Path(directory), agents=0) as fleet,
    ):
        for node, limit in LIMITS.items():
            fleet.start_agent(node, "--ram", "12Gi", "--wired-limit", limit)
        guard = {"prefillTransientMargin": "4Mi", "tier": "aggressive"}
        fleet.apply({"kind": "MemoryGuard", "metadata": {"name": "g"}, "spec": guard})
        # For placement: the small nodes have room for little more than one prompt.
        context = {"minTokens": 32}
        source = tiny_model("llama", layers=32, hidden=256, heads=8, context=32768)
        fleet.serve(MODEL, source, replicas=len(LIMITS), memoryGuard="g", context=context)
        eventually(lambda: count_known(fleet) == len(LIMITS), "every node tells its room")

        async def go() -> None:
            async with running_door(name, fleet) as url:
                # The first request of a process is slow everywhere: each node has one before.
                for agent in fleet.agents.values():
                    await run_first(agent.url)
                await run_workload(url, outcome)

        asyncio.run(go())
        outcome.node_refusals = count_node_refusals(fleet)
    return outcome


async def run_first(url: str) -> None:
    """Send one short question that is not counted."""
    async with open_session() as session:
        await Client(session, url, Outcome()).single(BRIEF, SHORT_WORDS, 1, 0.0)


def show(name: str, outcome: Outcome) -> None:
    """Print one router's lines of the table."""
    for kind, tally in outcome.tallies.items():
        ttft = sorted(tally.ttft) or [float("nan")]
        p50 = statistics.median(ttft)
        p95 = ttft[min(len(ttft) - 1, int(0.95 * len(ttft)))]
        prompt = sum(answer.prompt_tokens for answer in tally.answers)
        cached = sum(answer.cached_tokens for answer in tally.answers)
        longest = max((answer.prompt_tokens for answer in tally.answers), default=0)
        print(
            f"{name:>17} {kind:>10} {len(tally.answers):>9} {len(tally.faults):>7} "
            f"{p50:>8.2f} {p95:>8.2f} {cached / max(1, prompt):>7.0%} {longest:>7}",
            flush=True,
        )
        for fault in sorted(set(tally.faults)):
            print(f"{'':>17} {tally.faults.count(fault)} x {fault[:160]}")
    print(f"{name:>17} prompts refused at nodes for memory: {outcome.node_refusals}", flush=True)


def main() -> int:
    """Print the table; return 1 when the gateway missed an aim."""
    print(
        f"{'router':>17} {'kind':>10} {'completed':>9} {'refused':>7} {'TTFT p50':>8} "
        f"{'TTFT p95':>8} {'cached':>7} {'longest':>7}"
    )
    found = {}
    for name in sys.argv[1:] or (OURS, *ROUTERS):
        found[name] = measure(name)
        show(name, found[name])
    if not {OURS, "round robin"} <= set(found):
        return 0
    ours, theirs = found[OURS].tallies, found["round robin"].tallies
    ratio = statistics.median(ours[TALK].ttft) / statistics.median(theirs[TALK].ttft)
    print(f"multi-turn TTFT p50 over round robin's: {ratio:.2f} (at most {BEST_TTFT_RATIO})")
    served = not any(tally.faults for tally in ours.values())
    met = served and found[OURS].node_refusals == 0 and ratio <= BEST_TTFT_RATIO
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
