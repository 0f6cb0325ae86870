"""Where requests go in a fleet of unequal nodes: `python -m tests.bench.placement`.

Four real agents of unequal size, each with a real engine under a real guard, serve one small
model whose tokens are quick to compute. The same seeded workload goes through
the gateway and through the two routers of plain_routers.py, each time to fresh agents:
conversations that share a beginning, short questions, and long prompts with room for long answers,
which only the two larger nodes can hold. All nodes share this machine's cores, so what differs in
time is what had to be computed and where it waited.
"""

import asyncio
import math
import random
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
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
LIMITS = {"node-16": "512Mi", "node-32": "640Mi", "node-64": "928Mi", "node-128": "1600Mi"}
SEED = 11
CONVERSATIONS, TURNS = 4, 8
SYSTEM_WORDS, TURN_WORDS = 200, 120
SHORT, SHORT_WORDS = 16, 40
LONG, LONG_WORDS = 6, 600
ANSWER_TOKENS = 12
# What a long prompt's client asks for; it leaves after ANSWER_TOKENS, so that none is computed
# for minutes, but its node must have the room.
LONG_ANSWER_TOKENS = 95_000
BLOCK_TOKENS = 64
# Short and long prompts arrive in this time, conversations begin in its first half.
ARRIVALS_SECONDS = 36.0
THINK_SECONDS = 1.0
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
    avoidable: int = 0


@dataclass(frozen=True, slots=True)
class Client:
    """Sends to one router and keeps what comes back.

    `told_by` is the gateway of the same fleet, which knows whether a node had room for what
    another refused.
    """

    session: aiohttp.ClientSession
    url: str
    told_by: str
    outcome: Outcome

    async def ask(self, kind: str, messages: Sequence[Message]) -> str | None:
        """Send one request; its text, or None when it failed."""
        tally = self.outcome.tallies[kind]
        ask = Ask(tuple(messages), ANSWER_TOKENS, ignore_eos=True)
        if kind == BULKY:
            ask = replace(ask, output_tokens=LONG_ANSWER_TOKENS, pieces=ANSWER_TOKENS)
        try:
            answer = await send(self.session, Endpoint(self.url, MODEL), ask)
        except RequestFailed as fault:
            tally.faults.append(str(fault))
            self.outcome.avoidable += await self.fits_somewhere(ask)
            return None
        tally.answers.append(answer)
        return answer.text

    async def fits_somewhere(self, ask: Ask) -> bool:
        """Whether any node has room now for a request that was refused."""
        body = {"model": MODEL, "messages": list(ask.messages), "max_tokens": ask.output_tokens}
        async with self.session.post(self.told_by + "/fleet/v1/explain", json=body) as told:
            candidates = (await told.json()).get("candidates", [])
        return any(item["fitsNow"] for item in candidates)

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


async def run_workload(url: str, told_by: str, outcome: Outcome) -> None:
    """Send the workload to one router: the same texts at the same times for each."""
    source = random.Random(SEED)
    async with open_session() as session:
        client = Client(session, url, told_by, outcome)
        async with asyncio.TaskGroup() as group:
            for number in range(CONVERSATIONS):
                start = source.uniform(0, ARRIVALS_SECONDS / 2)
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
    urls = {node: agent.url for node, agent in fleet.agents.items()}
    async with running_router(name, urls) as url:
        yield url


def count_gateway_refusals(fleet: Fleet) -> int:
    """Return how many requests of the gateway any node has refused."""
    page = httpx.get(fleet.url + "/metrics", timeout=30, trust_env=False).text
    return sum(
        round(float(line.rsplit(" ", 1)[1]))
        for line in page.splitlines()
        if line.startswith("mlxfleet_gateway_upstream_attempts_total{") and '"refused"' in line
    )


def count_known(fleet: Fleet) -> int:
    """Return how many nodes the gateway knows the room of; 0 before it can count prompts."""
    body = {"model": MODEL, "messages": [user("hello")], "max_tokens": 1}
    answer = httpx.post(fleet.url + "/fleet/v1/explain", json=body, timeout=30, trust_env=False)
    told = answer.json()
    return sum(item["known"] for item in told.get("candidates", []) if told["exact"])


def start_nodes(fleet: Fleet) -> None:
    """Start the unequal nodes and serve the model on each, ready to be asked."""
    for node, limit in LIMITS.items():
        fleet.start_agent(node, "--ram", "12Gi", "--wired-limit", limit)
    guard = {"prefillTransientMargin": "4Mi", "tier": "aggressive"}
    fleet.apply({"kind": "MemoryGuard", "metadata": {"name": "g"}, "spec": guard})
    budget = {"blockTokens": BLOCK_TOKENS, "ssd": {"size": "1Gi", "leaveFree": "64Mi"}}
    fleet.apply({"kind": "CacheBudget", "metadata": {"name": "b"}, "spec": budget})
    # 6 KiB a token; attention costs as much as the rest at a depth of 1,280 tokens.
    source = tiny_model("llama", layers=3, hidden=256, heads=4, context=4_000_000)
    # For placement: the small nodes have room for little more than one prompt.
    context = {"minTokens": 32}
    spec = {"memoryGuard": "g", "cacheBudget": "b", "context": context}
    fleet.serve(MODEL, source, replicas=len(LIMITS), **spec)
    eventually(lambda: count_known(fleet) == len(LIMITS), "every node tells its room")


def measure(name: str) -> Outcome:
    """Run the workload through one router and fresh agents."""
    outcome = Outcome()
    with (
        tempfile.TemporaryDirectory() as directory,
        running_fleet(Path(directory), agents=0) as fleet,
    ):
        start_nodes(fleet)

        async def go() -> None:
            async with running_door(name, fleet) as url:
                # The first request of a process is slow everywhere: each node has one before.
                for agent in fleet.agents.values():
                    await run_first(agent.url, fleet.url)
                await run_workload(url, fleet.url, outcome)

        asyncio.run(go())
        if name == OURS:
            # What one node refused and another then took has no fault that a client saw.
            outcome.node_refusals = count_gateway_refusals(fleet)
            outcome.avoidable = max(outcome.avoidable, outcome.node_refusals)
        else:
            outcome.node_refusals = sum(len(item.faults) for item in outcome.tallies.values())
    return outcome


async def run_first(url: str, told_by: str) -> None:
    """Send one short question that is not counted."""
    async with open_session() as session:
        await Client(session, url, told_by, Outcome()).single(BRIEF, SHORT_WORDS, 1, 0.0)


def show(name: str, outcome: Outcome) -> None:
    """Print one router's lines of the table."""
    for kind, tally in outcome.tallies.items():
        ttft = sorted(tally.ttft) or [math.nan]
        p50 = statistics.median(ttft)
        p95 = ttft[min(len(ttft) - 1, int(0.95 * len(ttft)))]
        prompt = sum(answer.prompt_tokens for answer in tally.answers)
        cached = sum(answer.cached_tokens for answer in tally.answers)
        nodes = Counter(answer.node for answer in tally.answers)
        print(
            f"{name:>17} {kind:>10} {len(tally.answers):>9} {len(tally.faults):>7} "
            f"{p50:>8.2f} {p95:>8.2f} {cached / max(1, prompt):>7.0%}   "
            + "/".join(str(nodes[node]) for node in LIMITS),
            flush=True,
        )
        for fault in sorted(set(tally.faults)):
            print(f"{'':>17} {tally.faults.count(fault)} x {fault[:160]}")
    print(
        f"{name:>17} refused by nodes: {outcome.node_refusals}, of which another had room for: "
        f"{outcome.avoidable}",
        flush=True,
    )


def main() -> int:
    """Print the table; return 1 when the gateway missed an aim."""
    print(
        f"{'router':>17} {'kind':>10} {'completed':>9} {'refused':>7} {'TTFT p50':>8} "
        f"{'TTFT p95':>8} {'cached':>7}   {'/'.join(node.split('-')[1] for node in LIMITS)}"
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
