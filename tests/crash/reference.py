"""What is right: the answers of an engine without a cache, and the blocks of one never killed.

Reads block files as bytes; imports no MLX.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from node_agent.kvcache.block import Block
from node_agent.kvcache.block_format import (
    LENGTH_BYTES,
    BlockError,
    Expected,
    decode_block,
    decode_header,
    header_bytes,
)
from tests.crash.plan import CHUNK_TOKENS, SAID_TOKENS, Prompt, settings
from tests.support.cached_engine import await_report, cached_engine, ids, row
from tests.support.mlx_engine import BareEngine, bare_engine

# Rounding differs with the width of a chunk; another token's keys are elsewhere altogether.
_TOLERANCE = 1e-2


@dataclass(frozen=True, slots=True)
class Reference:
    """The answer of each prompt, and where the block of each name is."""

    answers: dict[Prompt, list[int]]
    blocks: dict[str, Path]


def observe_reference(model: Path, prompts: Sequence[Prompt], directory: Path) -> Reference:
    """Ask two engines that live long: one without a cache, one that keeps every block."""
    with ThreadPoolExecutor(2) as pool:
        cold = pool.submit(_ask_cold, model, prompts)
        keeper = pool.submit(_ask_keeper, model, prompts, directory)
    answers = cold.result()
    assert keeper.result() == answers
    return Reference(answers, {path.name: path for path in block_files(directory)})


def _ask_cold(model: Path, prompts: Sequence[Prompt]) -> dict[Prompt, list[int]]:
    with bare_engine(model, chunk_tokens=CHUNK_TOKENS) as engine:
        return {prompt: ask(engine, prompt) for prompt in prompts}


def _ask_keeper(model: Path, prompts: Sequence[Prompt], directory: Path) -> dict[Prompt, list[int]]:
    cache = settings(directory, 1 << 30)
    with cached_engine(model, cache, chunk_tokens=CHUNK_TOKENS) as engine:
        await_report(engine)
        return {prompt: ask(engine, prompt) for prompt in prompts}


def ask(engine: BareEngine, prompt: Prompt) -> list[int]:
    """Return what an engine says to a prompt."""
    return ids(engine.run(row("asked", list(prompt), SAID_TOKENS))["asked"])


def block_files(directory: Path) -> list[Path]:
    """Return the files that stand for blocks: what an engine would trust."""
    return sorted((directory / "kv" / "blocks").glob("*.safetensors"))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found of one file: `fault` is empty when it is good."""

    fault: str = ""
    compared: bool = False


def check_file(path: Path, reference: Reference) -> Verdict:
    """Check a block's seal and name, and its content where the reference has the block."""
    try:
        block = read_sealed(path)
    except BlockError as error:
        return Verdict(f"{path.name[:16]} does not verify: {error}")
    if path.name != f"{block.header.digest.hex()}.safetensors":
        return Verdict(f"{path.name[:16]} is another block")
    known = reference.blocks.get(path.name)
    if known is None:
        return Verdict()
    return Verdict(differs(block, read_sealed(known)), compared=True)


def read_sealed(path: Path) -> Block:
    """Return a block whose seal is right, whatever block it is. Raises: BlockError."""
    content = memoryview(path.read_bytes())
    length = header_bytes(content[:LENGTH_BYTES], len(content))
    end = LENGTH_BYTES + length
    header = decode_header(bytes(content[LENGTH_BYTES:end]), len(content) - end)
    expected = Expected(
        header.digest,
        header.parent,
        header.index,
        header.tokens,
        header.fingerprint,
        header.ids_digest,
    )
    return decode_block(content, expected)


def differs(found: Block, known: Block) -> str:
    """Return how a block differs from what it should be; empty when it does not."""
    name = found.header.digest.hex()[:16]
    if found.header != known.header:
        return f"{name} says of itself what is not so"
    for one, other in zip(found.tensors, known.tensors, strict=True):
        if (one.name, one.dtype, one.shape) != (other.name, other.dtype, other.shape):
            return f"{name} has other tensors"
        values, right = (np.frombuffer(x.data, np.float32) for x in (one, other))
        if not np.allclose(values, right, rtol=_TOLERANCE, atol=_TOLERANCE):
            return f"{name} holds other content in {one.name}"
    return ""
