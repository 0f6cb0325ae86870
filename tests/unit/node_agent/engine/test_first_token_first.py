"""A row's first token does not wait for its prompt's last blocks to be stored."""

from collections.abc import Iterator

import pytest

from node_agent.engine.messages import Abort, Event, Generate, Tokens
from tests.support.cached_engine import prompt, row, settings
from tests.support.local_engine import LocalEngine, local_engine
from tests.support.tiny_models import tiny_model

SHARED = prompt(300)
ENDING = row("ending", [*SHARED[:290], *prompt(12, seed=5)], 6)
LAST = len(ENDING.prompt) - 1


@pytest.fixture(scope="module", params=["llama", "qwen3_5"])
def model(request) -> str:
    return request.param


@pytest.fixture
def engine(model: str) -> Iterator[LocalEngine]:
    with local_engine(tiny_model(model), settings(), chunk_tokens=64) as one:
        one.run(row("shared", SHARED, 2))
        yield one


def stored_tokens(engine: LocalEngine, command: Generate = ENDING) -> int:
    """Return what the same prompt could start from; asked anew each time."""
    assert engine.prefixes is not None
    again = Generate(
        request_id="again",
        prompt=list(command.prompt),
        max_tokens=1,
        sampling=command.sampling,
    )
    return engine.prefixes.plan(again).cached_tokens


def step_to_first_token(engine: LocalEngine) -> None:
    """Submit the row and step until its first token is told."""
    events: list[Event] = engine.scheduler.submit(ENDING)
    while not any(isinstance(event, Tokens) for event in events):
        events = engine.scheduler.step()


def test_what_can_be_cut_later_is_stored_with_the_next_step(model, engine) -> None:
    step_to_first_token(engine)
    # Layers that cannot be cut later were stored as they stood.
    assert (stored_tokens(engine) == LAST) is (model == "qwen3_5")
    engine.scheduler.step()
    assert stored_tokens(engine) == LAST


def test_a_row_that_is_aborted_after_its_first_token_leaves_its_prompt(engine) -> None:
    step_to_first_token(engine)
    engine.scheduler.abort(Abort(request_id="ending", code="cancelled", message="no"))
    assert stored_tokens(engine) == LAST
