"""The prompts that are said to fit are those the arbiter admits, to the token."""

from dataclasses import replace

import pytest

from manifests.errors import Refusal
from manifests.kinds.engine import EnginePhase
from manifests.kinds.guard import MemoryGuardSpec
from node_agent.engine.messages import Loaded
from node_agent.host.base import HostMemory
from node_agent.memory.arbiter import Arbiter
from node_agent.memory.base import AdmissionRequest
from node_agent.memory.reading import EngineUse
from node_agent.pool.base import EngineView
from node_agent.sources.base import ModelFiles
from node_agent.sync.figures import observe_figures
from tests.support.pools import SHAPE, make_want

MIB = 1 << 20
RAM = 16 << 30
WEIGHTS = 100 * MIB


def node(free_bytes: int, tmp: str = "/nowhere") -> tuple[Arbiter, EngineView]:
    """Return an idle engine on a node with so much room beyond its weights and the margin."""
    arbiter = Arbiter(MemoryGuardSpec())
    use = EngineUse("tiny-0", 7, WEIGHTS, WEIGHTS, WEIGHTS)
    arbiter.observe(HostMemory(RAM, 256 * MIB + free_bytes, 0, 0), (use,))
    view = EngineView(
        make_want(),
        EnginePhase.READY,
        files=ModelFiles(tmp, WEIGHTS, "f", replace_context(1 << 20)),  # type: ignore[arg-type]
        loaded=Loaded(device="cpu", mlx_version="0", chunk_tokens=64, active_bytes=WEIGHTS),
        pid=7,
        making_progress=True,
    )
    return arbiter, view


def replace_context(tokens: int) -> object:
    return SHAPE.model_copy(update={"context_tokens": tokens})


def ask(arbiter: Arbiter, view: EngineView, tokens: int) -> AdmissionRequest:
    assert view.files is not None
    assert view.loaded is not None
    return AdmissionRequest(
        engine="tiny-0",
        model="tiny",
        shape=view.files.shape,
        prompt_tokens=tokens,
        cached_tokens=0,
        max_tokens=0,
        rows=1,
        chunk_tokens=view.loaded.chunk_tokens,
    )


@pytest.mark.parametrize("room", [1 * MIB, 3 * MIB, 17 * MIB, 64 * MIB])
@pytest.mark.parametrize("predicted", [None, 2 * MIB])
@pytest.mark.parametrize("alone", [True, False])
async def test_what_fits_now_is_admitted_and_one_token_more_is_not(
    room: int, predicted: int | None, alone: bool
) -> None:
    arbiter, view = node(room)
    if not alone:
        assert not isinstance(await arbiter.admit_load("other", 1000), Refusal)
    if predicted is not None:
        arbiter.lessons.note("tiny-0", predicted, 2 * predicted)
    fits = observe_figures(arbiter, view).tokens_fit_now
    refused = await arbiter.admit(ask(arbiter, view, fits + 1))
    assert isinstance(refused, Refusal)
    admitted = await arbiter.admit(ask(arbiter, view, fits))
    assert not isinstance(admitted, Refusal)
    admitted.release()
    assert fits > 0


async def test_what_fits_ever_is_more_than_now_while_other_apps_hold_memory() -> None:
    arbiter, view = node(3 * MIB)
    found = observe_figures(arbiter, view)
    assert found.tokens_fit_ever > found.tokens_fit_now
    refused = await arbiter.admit(ask(arbiter, view, found.tokens_fit_now + 1))
    assert isinstance(refused, Refusal)
    assert refused.retryable.value != "no"


async def test_a_lesson_makes_fewer_tokens_fit_beside_others_and_as_many_alone() -> None:
    arbiter, view = node(17 * MIB)
    alone = observe_figures(arbiter, view)
    held = await arbiter.admit(ask(arbiter, view, 100))
    assert not isinstance(held, Refusal)
    before = observe_figures(arbiter, view).tokens_fit_now
    arbiter.lessons.note("tiny-0", 2 * MIB, 5 * MIB)
    assert observe_figures(arbiter, view).tokens_fit_now < before
    held.release()
    assert observe_figures(arbiter, view) == alone
    assert observe_figures(arbiter, replace(view, files=None)).tokens_fit_now == 0
