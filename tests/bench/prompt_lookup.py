"""Tokens a second of one request with drafts and without, on SmolLM2: `python -m
tests.bench.prompt_lookup`.

The engine alone, twice side by side, one request at a time: prompts of random words, as the
comparison with other servers sends them, a question, and texts to repeat or to change a little.
The best of a few rounds counts, as other work on the machine only takes.
Drafts may cost nothing where nothing repeats and must pay where the prompt's text does; what is
said must be the same.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from manifests.prompt.worker import load_tokenizer
from node_agent.engine.messages import Finished, Generate, Heartbeat, SamplingParams
from tests.bench.peer_clients import write_text
from tests.support.fleet import SMOLLM2
from tests.support.mlx_engine import BareEngine
from tests.support.pools import token_ids

ROUNDS = 3
GREEDY = SamplingParams(temperature=0)
WORDS, OUTPUT_TOKENS = 500, 48
# Where nothing repeats drafts may cost so much, and where the prompt does they must give so much.
LEAST_RATIO, LEAST_REPEAT_RATIO = 0.95, 1.3

PROSE = """The harbour wakes before the town does. Boats come in one after another, and the men
on the quay take the ropes without looking up. Crates of silver fish are carried to the hall, where
the buyers stand in a half circle with their hands in their pockets. Nobody raises his voice. A
nod is enough, and the next crate is pushed forward. By seven the hall is empty and washed, and
only the gulls remember what was there."""

CODE = '''def total_price(items, discount):
    """Return the price of all items after a discount."""
    total = 0
    for item in items:
        if item.count < 0:
            raise ValueError("count must not be negative")
        total += item.price * item.count
    if discount:
        total = total - total * discount
    return round(total, 2)
'''


@dataclass(frozen=True, slots=True)
class Case:
    """One prompt; `repeats` says that its answer does."""

    name: str
    text: str
    output_tokens: int
    repeats: bool = False
    sampling: SamplingParams = GREEDY


def cases() -> list[Case]:
    """Return what is asked."""
    words = [Case(f"words {seed}", write_text(WORDS, seed), OUTPUT_TOKENS) for seed in (1, 2, 3)]
    drawn = SamplingParams(temperature=0.7, seed=7)
    return [
        *words,
        Case("question", "How does a steam engine work? Explain it in detail.", 128),
        Case("story, drawn", "Write a short story about a lighthouse.", 128, sampling=drawn),
        Case("repeat prose", f"Repeat this text word for word:\n\n{PROSE}", 100, repeats=True),
        Case(
            "edit code",
            f"Rename `total` to `amount` in this code and write all of it:\n\n{CODE}",
            100,
            repeats=True,
        ),
    ]


@dataclass(slots=True)
class Side:
    """One engine and what it took. Units: seconds of decoding, tokens."""

    engine: BareEngine
    drafted: int = 0
    accepted: int = 0

    def ask(self, name: str, prompt: Sequence[int], case: Case) -> tuple[list[int], float]:
        """Return what is said, and the tokens a second from the first to the last."""
        command = Generate(
            request_id=name,
            prompt=list(prompt),
            max_tokens=case.output_tokens,
            sampling=case.sampling,
            ignore_eos=True,
        )
        self.engine.send(command)
        events, first = [], 0.0
        for event in self.engine.events:
            if getattr(event, "request_id", None) != name:
                continue
            events.append(event)
            if not first and token_ids([event]):
                first = time.perf_counter()
            if isinstance(event, Finished):
                break
        said = token_ids(events)
        return said, (len(said) - 1) / (time.perf_counter() - first)

    def note_drafts(self) -> tuple[int, int]:
        """Return the tokens drafted and accepted since the last call."""
        self.engine.await_event(Heartbeat)
        beat = self.engine.await_event(Heartbeat)
        new = (beat.drafted_tokens - self.drafted, beat.accepted_tokens - self.accepted)
        self.drafted, self.accepted = beat.drafted_tokens, beat.accepted_tokens
        return new


def measure(tokenizer: Any, case: Case, plain: Side, drafting: Side) -> bool:
    """Print a line; return whether the case met its target and both said the same."""
    messages = [{"role": "user", "content": case.text}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    rates: dict[str, list[float]] = {"plain": [], "drafts": []}
    said: list[list[int]] = []
    for turn in range(ROUNDS):
        for name, side in (("plain", plain), ("drafts", drafting)):
            tokens, rate = side.ask(f"{case.name}-{turn}", prompt, case)
            said.append(tokens)
            rates[name].append(rate)
    best = {name: max(found) for name, found in rates.items()}
    ratio = best["drafts"] / best["plain"]
    same = all(tokens == said[0] for tokens in said)
    drafted, accepted = drafting.note_drafts()
    share = accepted / drafted if drafted else 0.0
    print(
        f"{case.name:<16} {best['plain']:>7.1f} {best['drafts']:>7.1f} {ratio:>6.2f}"
        f" {drafted // ROUNDS:>8} {share:>9.0%}  {'same' if same else 'DIFFERENT'}",
        flush=True,
    )
    return same and ratio >= (LEAST_REPEAT_RATIO if case.repeats else LEAST_RATIO)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 1 when drafts cost too much, pay too little or change a token."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.prompt_lookup")
    parser.add_argument("only", nargs="*", metavar="WORD", help="cases whose name has it")
    only = parser.parse_args(arguments).only
    wanted = [one for one in cases() if not only or any(word in one.name for word in only)]
    if not SMOLLM2.is_dir():
        print(f"{SMOLLM2} is missing: make models")
        return 1
    tokenizer = load_tokenizer(SMOLLM2)
    plain, drafting = Side(BareEngine()), Side(BareEngine())
    try:
        plain.engine.load(SMOLLM2, drafts=False)
        drafting.engine.load(SMOLLM2)
        print(f"{'':<16} {'tok/s':>7} {'drafts':>7} {'ratio':>6} {'drafted':>8} {'came true':>9}")
        met = [measure(tokenizer, case, plain, drafting) for case in wanted]
    finally:
        plain.engine.stop()
        drafting.engine.stop()
    print(f"at least {LEAST_RATIO}, and {LEAST_REPEAT_RATIO} where the prompt is repeated")
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
