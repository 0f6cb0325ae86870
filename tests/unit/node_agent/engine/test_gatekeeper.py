"""What the gate foretells of a chunk is what it asked room for."""

from node_agent.engine.scheduling.gatekeeper import Chunks, Gatekeeper
from tests.support.counting_runner import FORECAST, CountingMemory, CountingRunner


def test_a_chunk_that_takes_the_prompts_last_token_along_is_foretold_with_its_logits() -> None:
    memory = CountingMemory(CountingRunner(max_rows=1, chunk_tokens=64))
    gatekeeper = Gatekeeper(memory, FORECAST, lambda: 0.0)
    middle = gatekeeper.predict(Chunks(100, 16, 200))
    assert middle == FORECAST.chunk_bytes(100, 16)
    logits_bytes = 16 * FORECAST.shape.vocab_size * 4
    assert gatekeeper.predict(Chunks(100, 16, 116)) == middle + logits_bytes > middle
