"""How one row begins: from stored blocks, or from nothing for want of memory."""

from pathlib import Path

from tests.support.cached_engine import prompt, row, settings
from tests.support.local_engine import LocalEngine
from tests.support.tiny_models import tiny_model

BLOCK_TOKENS = 32


def test_a_restore_that_memory_refuses_is_counted(tmp_path: Path) -> None:
    cache = settings(tmp_path / "kv", block_tokens=BLOCK_TOKENS)
    engine = LocalEngine(tiny_model("llama"), cache)
    tokens = prompt(3 * BLOCK_TOKENS)
    engine.run(row("first", tokens))
    assert engine.prefixes is not None
    again = engine.prefixes.row(row("again", tokens))
    assert again.restore_bytes()
    again.start_cold()
    assert again.restore_bytes() == 0
    counters = engine.settle().counters
    assert (counters["refused_restores"], counters["misses"]) == (1, 1)
    engine.close()
