"""What counting a prompt costs the gateway: `python -m tests.bench.gateway_tokenize`.

Distinct chats of about 1,000 tokens go one after the other to a tokenizer process, as the gateway
sends them; then many at once. The loop's own share and the process's are processor time for each
prompt, which other work on the machine changes less.
"""

import asyncio
import json
import random
import statistics
import sys
import time
from pathlib import Path

import psutil
import uvloop

from manifests.prompt.messages import EncodeBody, PackedPrompts, TextCommand
from manifests.prompt.process import TokenizerLink
from tests.support.fleet import ROOT, SMOLLM2

PROMPTS = 400
WORDS = 750
AT_ONCE = 16
MOST_P50_SECONDS = 0.002
MOST_LOOP_SECONDS = 0.0002


def prompt(number: int, words: list[str]) -> bytes:
    """Return the JSON of one chat, unlike any other."""
    chosen = random.Random(number)
    text = f"{number} " + " ".join(chosen.choice(words) for _ in range(WORDS))
    user = {"role": "user", "content": text}
    return json.dumps({"messages": [{"role": "system", "content": "be brief"}, user]}).encode()


async def ask(link: TokenizerLink, body: bytes) -> int:
    """Return how many tokens a chat has."""

    def build(number: int) -> TextCommand:
        return EncodeBody(number=number, chat=True, body=body)

    reply = await link.ask(build)
    assert isinstance(reply, PackedPrompts), reply
    return len(reply.prompts[0]) // 4


async def measure(directory: Path) -> int:
    """Print the table; return 1 when a bound is missed."""
    words = (ROOT / "LICENSE").read_text().split()
    link = await TokenizerLink.start(directory, ids_only=True)
    try:
        bodies = [prompt(number, words) for number in range(PROMPTS + 20)]
        seconds, loop_seconds, tokens = [], [], []
        child = psutil.Process(link.pid)
        spent = sum(child.cpu_times()[:2])
        for number, body in enumerate(bodies):
            own, began = time.process_time(), time.perf_counter()
            count = await ask(link, body)
            if number >= 20:  # the first ones warm caches
                seconds.append(time.perf_counter() - began)
                loop_seconds.append(time.process_time() - own)
                tokens.append(count)
        child_seconds = (sum(child.cpu_times()[:2]) - spent) / len(bodies)
        turn = asyncio.Semaphore(AT_ONCE)

        async def one(body: bytes) -> None:
            async with turn:
                await ask(link, body)

        began = time.perf_counter()
        await asyncio.gather(*(one(prompt(1000 + n, words)) for n in range(PROMPTS)))
        rate = PROMPTS / (time.perf_counter() - began)
    finally:
        await link.close()
    p50, p95 = statistics.median(seconds), statistics.quantiles(seconds, n=20)[-1]
    own = statistics.median(loop_seconds)
    heads = ("tokens", "p50 ms", "p95 ms", "loop ms", "process ms", "per s at once")
    print("{:>8} {:>8} {:>8} {:>8} {:>10} {:>14}".format(*heads))
    print(
        f"{statistics.median(tokens):>8.0f} {p50 * 1e3:>8.2f} {p95 * 1e3:>8.2f} "
        f"{own * 1e3:>8.3f} {child_seconds * 1e3:>10.2f} {rate:>14.0f}"
    )
    print(f"at most {MOST_P50_SECONDS * 1e3:.1f} ms, of which the loop's {MOST_LOOP_SECONDS * 1e3}")
    return 0 if p50 <= MOST_P50_SECONDS and own <= MOST_LOOP_SECONDS else 1


def main() -> int:
    """Measure with SmolLM2's tokenizer."""
    return uvloop.run(measure(SMOLLM2))


if __name__ == "__main__":
    sys.exit(main())
