"""What a long prompt does to a running stream, on SmolLM2 in a real engine: `python -m
tests.bench.running_pace`.

A row decodes; then a prompt of 2,800 tokens comes. The target: the running row never waits
longer than a second for its next token. What that costs the prompt is printed beside it.
"""

import statistics
import sys
import time

from node_agent.engine.messages import Tokens
from tests.support.fleet import SMOLLM2
from tests.support.mlx_engine import BareEngine, bare_engine
from tests.support.token_gaps import greedy_row, measure_gaps

PROMPT_TOKENS = 2800
SETTLE_TOKENS = 100
MOST_GAP_SECONDS = 1.0


def feed_alone(engine: BareEngine) -> float:
    """Return the seconds to a prompt's first token when nothing else runs."""
    started = time.perf_counter()
    engine.send(greedy_row("alone", PROMPT_TOKENS, 1))
    for event in engine.events:
        if isinstance(event, Tokens) and event.request_id == "alone":
            return time.perf_counter() - started
    raise RuntimeError("the engine left before the first token")


def main() -> int:
    """Print what was seen; return 1 when the running row waited too long."""
    if not SMOLLM2.is_dir():
        print(f"{SMOLLM2} is missing: make models")
        return 1
    with bare_engine(SMOLLM2) as engine:
        found = measure_gaps(engine, PROMPT_TOKENS, SETTLE_TOKENS)
        alone_seconds = feed_alone(engine)
    worst = max(found.gaps)
    print(
        f"gap between tokens, nothing else: median {statistics.median(found.alone):.3f} s, "
        f"worst {max(found.alone):.3f} s"
    )
    print(
        f"while {PROMPT_TOKENS} tokens are fed: median {statistics.median(found.gaps):.3f} s, "
        f"worst {worst:.3f} s (at most {MOST_GAP_SECONDS:.1f}), over {len(found.gaps)} tokens"
    )
    print(
        f"the prompt: {found.prefill_seconds:.1f} s in {len(found.chunks)} chunks of "
        f"{min(found.chunks)} to {max(found.chunks)} tokens; alone {alone_seconds:.1f} s"
    )
    return 0 if worst <= MOST_GAP_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
