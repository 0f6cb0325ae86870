"""The tokenizer as a process: starting, asking, dying, closing."""

import asyncio
from pathlib import Path

import psutil
import pytest

from manifests.errors import Code, EngineError, RequestError, Retryable
from manifests.sizing.estimate import ModelShape
from node_agent.sources.base import ModelFiles
from node_agent.text.models import TokenizerPool, TokenizerProcess
from tests.support.local_text import LocalText
from tests.support.tiny_tokenizers import write_tokenizer

pytestmark = pytest.mark.processes

CHAT = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "hello  world 👋"},
]


def model_files(directory: Path) -> ModelFiles:
    shape = ModelShape(
        model_type="llama",
        groups=(),
        hidden_size=64,
        intermediate_size=128,
        attention_heads=4,
        kv_heads=2,
        head_dim=16,
        vocab_size=420,
        dtype_bytes=4,
        context_tokens=4096,
    )
    return ModelFiles(directory, 0, "sha256:abc", shape)


async def test_a_process_answers_as_the_tokenizer_in_place(
    texts: dict[str, LocalText], tmp_path: Path
) -> None:
    """B23: the same ids by the process, and one process for all who ask at once."""
    pool = TokenizerPool()
    files = model_files(write_tokenizer("byte_level", tmp_path))
    try:
        first, second = await asyncio.gather(pool.get(files), pool.get(files))
        assert first is second
        here = texts["byte_level"]
        assert first.ready == here.ready
        assert await first.encode_chat(CHAT, None, {}) == await here.encode_chat(CHAT, None, {})
        with pytest.raises(RequestError) as refused:
            await first.encode_chat([{"role": "assistant", "tool_calls": [5]}], None, {})
        assert refused.value.refusal.param == "messages"
        detokenizer = first.new_detokenizer()
        assert "".join(detokenizer.push(number)[0] for number in here.ids(" hi 日")) == " hi 日"
    finally:
        await pool.close()


async def test_a_directory_without_a_tokenizer_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(EngineError) as refused:
        await TokenizerProcess.start(tmp_path)
    assert refused.value.refusal.code is Code.ENGINE_NOT_READY
    assert str(tmp_path) not in refused.value.refusal.message


async def test_a_tokenizer_that_dies_fails_its_request_and_is_started_again(tmp_path: Path) -> None:
    pool = TokenizerPool()
    files = model_files(write_tokenizer("byte_level", tmp_path))
    try:
        first = await pool.get(files)
        before = set(psutil.Process().children())
        [child] = [item for item in before if str(tmp_path) in item.cmdline()]
        child.suspend()
        asked = asyncio.create_task(first.encode_texts(["hello"]))
        child.kill()
        with pytest.raises(EngineError) as lost:
            await asked
        assert lost.value.refusal.retryable is Retryable.HERE
        second = await pool.get(files)
        assert second is not first
        assert await second.encode_texts(["hello"])
    finally:
        await pool.close()


async def test_processes_nobody_wants_are_closed(tmp_path: Path) -> None:
    pool = TokenizerPool()
    files = model_files(write_tokenizer("byte_level", tmp_path))
    pool.retain([files])
    await pool.get(files)
    await pool.close()
    assert not [c for c in psutil.Process().children() if str(tmp_path) in c.cmdline()]
