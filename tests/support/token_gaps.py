"""How long a running row waits for its next token while another row's prompt is fed."""

import time
from dataclasses import dataclass, field

from node_agent.engine.messages import (
    Cancel,
    Failed,
    Finished,
    Generate,
    PrefillProgress,
    SamplingParams,
    Tokens,
)
from tests.support.mlx_engine import BareEngine

RUNNING, LONG = "running", "long"


@dataclass
class Gaps:
    """What was seen. Units: seconds; `gaps` between the running row's tokens, in order."""

    alone: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    chunks: list[int] = field(default_factory=list)
    prefill_seconds: float = 0.0


def greedy_row(name: str, prompt_tokens: int, max_tokens: int) -> Generate:
    """Return a row that runs to its last token; every prompt of a length is the same."""
    prompt = [(7 * place + prompt_tokens) % 1000 for place in range(prompt_tokens)]
    return Generate(
        request_id=name,
        prompt=prompt,
        max_tokens=max_tokens,
        ignore_eos=True,
        sampling=SamplingParams(temperature=0),
    )


def measure_gaps(engine: BareEngine, prompt_tokens: int, settle_tokens: int = 10) -> Gaps:
    """Start a row, then one with a long prompt; watch until the long one has its first token.

    Raises AssertionError when a row fails or the running one ends too early.
    """
    found = Gaps()
    engine.send(greedy_row(RUNNING, 8, 100_000))
    last = sent = None
    for event in engine.events:
        now = time.perf_counter()
        assert not isinstance(event, Failed | Finished), event
        if isinstance(event, PrefillProgress) and event.request_id == LONG:
            found.chunks.append(event.chunk_tokens)
        if not isinstance(event, Tokens):
            continue
        if event.request_id == LONG:
            assert sent is not None
            found.prefill_seconds = now - sent
            break
        if last is not None:
            (found.alone if sent is None else found.gaps).append(now - last)
        last = now
        if sent is None and len(found.alone) >= settle_tokens:
            sent = now
            engine.send(greedy_row(LONG, prompt_tokens, 2))
    engine.send(Cancel(request_id=RUNNING))
    for event in engine.events:
        if isinstance(event, Finished) and event.request_id == RUNNING:
            return found
    raise AssertionError("the engine left before the running row had ended")
