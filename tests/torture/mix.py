"""What the clients ask, drawn from a seed: models, prompt sizes, how they listen and leave.

Pure. The same seed draws the same requests; when they meet is up to the machine. Units: tokens,
seconds.
"""

import math
import random
from dataclasses import dataclass
from typing import Any

VOCABULARY = range(20, 1000)
WORDS = ("write", "a", "short", "story", "about", "a", "small", "dog", "and", "an", "old", "tree")


@dataclass(frozen=True, slots=True)
class SizeClass:
    """Prompts from `low_tokens` to `high_tokens`, small ones more often; `rows` of them at once."""

    name: str
    low_tokens: int
    high_tokens: int
    weight: float
    outputs_tokens: tuple[int, ...] = (4, 8, 24, 48)
    rows: tuple[int, ...] = (1,)


@dataclass(frozen=True, slots=True)
class Target:
    """A model that is asked, with the prompts it gets. `comes_and_goes`: it may be absent."""

    name: str
    weight: float
    classes: tuple[SizeClass, ...]
    comes_and_goes: bool = False


@dataclass(frozen=True, slots=True)
class Mix:
    """All of it. `leave_ratio` of the clients hang up; `wave_clients` begin with a long prompt."""

    targets: tuple[Target, ...]
    leave_ratio: float = 0.12
    leave_seconds: float = 12.0
    direct_ratio: float = 0.25
    wave_clients: int = 8


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. `leave_after_seconds` None listens to the end; `chat` sends text."""

    client: int
    number: int
    model: str
    size: str
    prompt_tokens: int
    max_tokens: int
    rows: int
    stream: bool
    chat: bool
    direct: bool
    leave_after_seconds: float | None
    seed: int


TINY_CLASSES = (
    SizeClass("small", 30, 500, 0.62, (4, 8, 24, 64, 200)),
    SizeClass("medium", 500, 3_000, 0.20, (4, 16, 64, 400), (1, 1, 1, 3)),
    SizeClass("large", 3_000, 10_000, 0.10),
    SizeClass("huge", 10_000, 30_000, 0.06),
    SizeClass("never", 28_000, 30_000, 0.02, (8,), (16,)),
)
SMOLLM2_CLASSES = (
    SizeClass("small", 30, 400, 0.78, (4, 8, 24)),
    SizeClass("medium", 400, 1_500, 0.14, (4, 8)),
    SizeClass("large", 1_500, 8_000, 0.05, (4, 8)),
    SizeClass("never", 7_000, 8_000, 0.03, (8,), (6,)),
)
VISITOR_CLASSES = (SizeClass("small", 30, 500, 1.0),)

DEFAULT_MIX = Mix(
    (
        Target("dense", 0.42, TINY_CLASSES),
        Target("moe", 0.32, TINY_CLASSES, comes_and_goes=True),
        Target("smollm2", 0.14, SMOLLM2_CLASSES),
        Target("visitor", 0.12, VISITOR_CLASSES, comes_and_goes=True),
    )
)


def draw_ask(mix: Mix, rng: random.Random, client: int, number: int) -> Ask:
    """Return a client's next request; the first of some is long, so that long ones meet."""
    wave = number == 0 and client < mix.wave_clients
    steady = [target for target in mix.targets if len(target.classes) > 1]
    if wave:
        target = steady[client % min(2, len(steady))]
        size = next(item for item in reversed(target.classes) if item.rows == (1,))
    else:
        target = rng.choices(mix.targets, [item.weight for item in mix.targets])[0]
        size = rng.choices(target.classes, [item.weight for item in target.classes])[0]
    least = size.high_tokens // 2 if wave else size.low_tokens
    low, high = math.log(least), math.log(size.high_tokens)
    chat = not wave and size is target.classes[0] and rng.random() < 0.25
    leaves = not wave and rng.random() < mix.leave_ratio
    return Ask(
        client=client,
        number=number,
        model=target.name,
        size=size.name,
        prompt_tokens=round(math.exp(rng.uniform(low, high))),
        max_tokens=rng.choice(size.outputs_tokens),
        rows=1 if chat else rng.choice(size.rows),
        stream=rng.random() < 0.6,
        chat=chat,
        direct=rng.random() < mix.direct_ratio,
        leave_after_seconds=rng.uniform(0.02, mix.leave_seconds) if leaves else None,
        seed=rng.randrange(1 << 30),
    )


def build_body(ask: Ask) -> dict[str, Any]:
    """Return the request's JSON: token ids, so that the size is exact, or a chat."""
    rng = random.Random(ask.seed)
    body: dict[str, Any] = {
        "model": ask.model,
        "max_tokens": ask.max_tokens,
        "stream": ask.stream,
        "temperature": 0,
        "ignore_eos": True,
    }
    if ask.stream:
        body["stream_options"] = {"include_usage": True}
    if ask.chat:
        words = " ".join(rng.choices(WORDS, k=max(1, ask.prompt_tokens // 2)))
        return {**body, "messages": [{"role": "user", "content": words}]}
    prompts = [rng.choices(VOCABULARY, k=ask.prompt_tokens) for _ in range(ask.rows)]
    return {**body, "prompt": prompts[0] if ask.rows == 1 else prompts}


def path_of(ask: Ask) -> str:
    """Return the route."""
    return "/v1/chat/completions" if ask.chat else "/v1/completions"
