"""What a run does: the kills, the load, and the prompts. Pure."""

import random
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from node_agent.engine.messages import CacheSettings

SAID_TOKENS = 8
# Layers wide enough that a block takes about a megabyte: its write then takes a while.
LAYERS, HIDDEN, HEADS = 8, 256, 8
BLOCK_TOKENS = 64
CHUNK_TOKENS = 256
_BRANCHES = 4

Prompt = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """One run: engines that share a directory are asked about `documents`.

    The directory holds about a third of all their blocks, so that they come and go.
    """

    kills: int = 200
    seed: int = 1
    documents: int = 6
    samples: int = 3
    rows: int = 6

    @property
    def size_bytes(self) -> int:
        """Return the budget of the directory."""
        return self.documents * (5 << 20)


class Moment(StrEnum):
    """When an engine is killed."""

    OPENING = "while it starts"
    ANYWHERE = "anywhere"
    WRITING = "a file is being written"


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill: after so many events of the load, then `fraction` of the moment's own span."""

    moment: Moment
    events: int
    fraction: float


def plan_kill(source: random.Random) -> Kill:
    """Draw the moment of a kill."""
    moments, weights = list(Moment), (1, 4, 5)
    moment = source.choices(moments, weights)[0]
    # Most is written soon after the load began.
    events = source.randrange(80 if moment is Moment.ANYWHERE else 8)
    return Kill(moment, events, source.random())


def plan_prompts(documents: int) -> tuple[Prompt, ...]:
    """Return prompts that share documents and part in the middle of blocks."""
    source = random.Random(7)
    prompts = []
    for _ in range(documents):
        document = [20 + source.randrange(900) for _ in range(source.randrange(260, 340))]
        for _ in range(_BRANCHES):
            shared = document[: source.randrange(100, len(document))]
            question = [20 + source.randrange(900) for _ in range(source.randrange(5, 70))]
            prompts.append((*shared, *question))
    return tuple(prompts)


def settings(directory: Path, size_bytes: int) -> CacheSettings:
    """Return a cache on the disk alone."""
    return CacheSettings(
        directory=str(directory / "kv"),
        memory_file=str(directory / "memory"),
        size_bytes=size_bytes,
        block_tokens=BLOCK_TOKENS,
    )
