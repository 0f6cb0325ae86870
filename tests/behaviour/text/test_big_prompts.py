"""Tokenizing a big prompt leaves the agent's loop free for everyone else."""

import asyncio
import time
from pathlib import Path

import pytest

from manifests.prompt.messages import TooLong
from manifests.sizing.estimate import ModelShape
from node_agent.sources.base import ModelFiles
from node_agent.text.models import TokenizerPool
from tests.support.tiny_tokenizers import write_tokenizer

pytestmark = pytest.mark.processes

SHAPE = ModelShape(
    model_type="llama",
    groups=(),
    hidden_size=64,
    intermediate_size=128,
    attention_heads=4,
    kv_heads=2,
    head_dim=16,
    vocab_size=420,
    dtype_bytes=4,
    context_tokens=1 << 20,
)


async def longest_gap_seconds(work: asyncio.Task[object]) -> float:
    """Return the longest time the loop did not come round while some work ran."""
    longest, last = 0.0, time.perf_counter()
    while not work.done():
        await asyncio.sleep(0.001)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    return longest


async def test_the_loop_comes_round_while_a_big_prompt_is_tokenized(tmp_path: Path) -> None:
    text = "The quick brown fox jumps over the lazy dog. " * 40_000
    files = ModelFiles(write_tokenizer("byte_level", tmp_path), 0, "sha256:abc", SHAPE)
    pool = TokenizerPool()
    try:
        model = await pool.get(files)
        began = time.perf_counter()
        work: asyncio.Task[object] = asyncio.create_task(model.encode_texts([text]))
        gap = await longest_gap_seconds(work)
        seconds = time.perf_counter() - began
        [ids] = work.result()  # type: ignore[misc]
        print(f"{len(ids)} tokens in {seconds:.2f} s; longest gap {1000 * gap:.0f} ms")
        # Reading the answer costs the loop some milliseconds; the tokenizer itself nothing.
        assert gap < seconds / 3
        small = await model.encode_texts(["hi"])
        assert small[0]
    finally:
        await pool.close()


async def test_of_a_prompt_that_is_too_long_only_the_length_comes_back(tmp_path: Path) -> None:
    """B59: millions of ids would take the loop's time only to be refused."""
    files = ModelFiles(write_tokenizer("byte_level", tmp_path), 0, "sha256:abc", SHAPE)
    pool = TokenizerPool()
    try:
        model = await pool.get(files)
        [ids] = await model.encode_texts(["hello world"])  # type: ignore[misc]
        assert await model.encode_texts(["hello world"], most_tokens=len(ids)) == [ids]
        refused = await model.encode_texts(["hello world", "hi"], most_tokens=len(ids) - 1)
        assert isinstance(refused, TooLong)
        assert refused.tokens[0] == len(ids)
        chat = [{"role": "user", "content": "hello world"}]
        chat_ids = await model.encode_chat(chat, None, {})
        refused = await model.encode_chat(chat, None, {}, most_tokens=1)
        assert isinstance(refused, TooLong)
        assert refused.tokens == [len(chat_ids)]  # type: ignore[arg-type]
    finally:
        await pool.close()
