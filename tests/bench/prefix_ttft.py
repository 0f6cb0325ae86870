"""Time to the first token: cold, repeated, another ending, next turn, after a restart from disk.

Run: python -m tests.bench.prefix_ttft [MODEL_DIRECTORY] [PROMPT_TOKENS]
"""

import sys
import tempfile
import time
from pathlib import Path

from node_agent.engine.messages import CacheReport, CacheSettings, Finished, Restored, Tokens
from tests.support.cached_engine import await_report, cached_engine, prompt, row
from tests.support.mlx_engine import BareEngine, bare_engine

REPLY_TOKENS = 64


def measure(engine: BareEngine, name: str, tokens: list[int]) -> list[int]:
    """Run one row, print its time to the first token, and return its tokens."""
    started = time.perf_counter()
    engine.send(row(name, tokens, REPLY_TOKENS))
    first, restored, said = 0.0, None, []
    for event in engine.events:
        if isinstance(event, Restored):
            restored = event
        if isinstance(event, Tokens):
            first = first or time.perf_counter() - started
            said += event.ids
        if isinstance(event, Finished):
            break
    total = time.perf_counter() - started
    how = "" if restored is None else f", restore {restored.seconds * 1000:.0f} ms"
    print(
        f"{name:24} ttft {first * 1000:8.0f} ms  decode {(total - first) * 1000 / 63:6.1f} ms/token"
        f"  cached {event.cached_tokens} of {event.prompt_tokens}{how}",
        flush=True,
    )
    return said


def main(model: Path, prompt_tokens: int) -> None:
    """Measure the cases and the engine without a cache."""
    tokens = prompt(prompt_tokens)
    with tempfile.TemporaryDirectory() as scratch:
        cache = CacheSettings(
            directory=f"{scratch}/kv", size_bytes=4 << 30, hot_bytes=1 << 30, block_tokens=256
        )
        with bare_engine(model) as engine:
            measure(engine, "warm-up", tokens[:100])
            measure(engine, "without a cache", tokens)
        with cached_engine(model, cache) as engine:
            measure(engine, "warm-up", prompt(100, seed=5))
            said = measure(engine, "cold", tokens)
            measure(engine, "repeat", tokens)
            measure(engine, "another ending", [*tokens[:-20], *prompt(20, seed=7)])
            turn = [*tokens, *said, *prompt(30, seed=2)]
            measure(engine, "next turn", turn)
            report = engine.await_event(CacheReport)
            print({k: v for k, v in report.counters.items() if v}, report.hot_used_bytes)
        with cached_engine(model, cache) as engine:
            await_report(engine)
            measure(engine, "warm-up", prompt(100, seed=6))
            measure(engine, "restart, another ending", [*tokens[:-20], *prompt(20, seed=8)])
            measure(engine, "restart", tokens)
            measure(engine, "restart, next turn", turn)


if __name__ == "__main__":
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(".models/smollm2-135m")
    main(directory, int(sys.argv[2]) if len(sys.argv) > 2 else 1200)
