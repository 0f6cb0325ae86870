"""The arbiter: one door, one ledger, the guard of the engine or of the node."""

import pytest

from manifests.errors import Code, Refusal, Retryable
from manifests.estimate import PrefillCase, estimate_prefill
from manifests.guard import MemoryGuardSpec, Tier
from manifests.node import PressureLevel
from manifests.units import GIB
from node_agent.host.base import HostMemory
from node_agent.memory.arbiter import Arbiter
from node_agent.memory.base import AdmissionRequest, Reservation
from node_agent.memory.reading import EngineUse
from tests.support.pools import SHAPE

HOST = HostMemory(20 * GIB, 16 * GIB, 0, 0)


def granted(answer: Reservation | Refusal) -> Reservation:
    assert not isinstance(answer, Refusal)
    return answer


def arbiter_with(*uses: EngineUse) -> Arbiter:
    arbiter = Arbiter(MemoryGuardSpec())
    arbiter.observe(HOST, uses)
    return arbiter


def engine(name: str, gib: int) -> EngineUse:
    return EngineUse(name, 7, gib * GIB, weights_bytes=gib * GIB)


def test_nothing_is_admitted_before_the_first_sample() -> None:
    answer = Arbiter(MemoryGuardSpec()).admit_prefill("a", 1)
    assert isinstance(answer, Refusal)
    assert (answer.code, answer.retryable) == (Code.ENGINE_NOT_READY, Retryable.LATER)


def test_headroom_is_ceiling_less_used_less_reserved_and_returns_after_release() -> None:
    arbiter = arbiter_with(engine("a", 4))
    reservation = granted(arbiter.admit_prefill("a", 5 * GIB))
    state = arbiter.state()
    assert state.ceilings.hard_bytes == 16 * GIB
    assert (state.used_bytes, state.reserved_bytes) == (4 * GIB, 5 * GIB)
    assert state.headroom_bytes == 7 * GIB
    reservation.release()
    reservation.release()
    assert arbiter.state().headroom_bytes == 12 * GIB


def test_two_loads_are_never_admitted_against_the_same_bytes() -> None:
    arbiter = arbiter_with()
    granted(arbiter.admit_load("a", 10 * GIB))
    second = arbiter.admit_load("b", 10 * GIB)
    assert isinstance(second, Refusal)
    assert second.retryable is Retryable.LATER


def test_a_loading_engine_is_counted_once_while_it_grows() -> None:
    arbiter = arbiter_with()
    granted(arbiter.admit_load("a", 10 * GIB))
    arbiter.observe(HOST, (EngineUse("a", 7, 6 * GIB),))
    state = arbiter.state()
    assert state.used_bytes + state.reserved_bytes == 10 * GIB


def test_a_gone_engines_memory_is_free_at_the_next_sample() -> None:
    arbiter = arbiter_with(engine("a", 10))
    arbiter.observe(HOST, ())
    assert arbiter.state().used_bytes == 0


def test_an_engines_own_guard_stands_before_the_nodes() -> None:
    arbiter = arbiter_with(engine("a", 1), engine("b", 1))
    strict = MemoryGuardSpec.model_validate({"tier": Tier.CUSTOM, "customCeiling": "4Gi"})
    arbiter.set_guards(MemoryGuardSpec(), {"a": strict})
    answer = arbiter.admit_prefill("a", 6 * GIB)
    assert isinstance(answer, Refusal)
    assert "customCeiling" in answer.hint
    granted(arbiter.admit_prefill("b", 6 * GIB))


def test_room_tells_what_fits_now_and_on_an_idle_node() -> None:
    arbiter = arbiter_with(engine("a", 4), engine("b", 2))
    granted(arbiter.admit_prefill("b", 3 * GIB))
    assert arbiter.engine_room_bytes("a") == (7 * GIB, 12 * GIB)


def test_pressure_is_reported_by_level() -> None:
    assert arbiter_with(engine("a", 10)).state().pressure is PressureLevel.OK
    assert arbiter_with(engine("a", 15)).state().pressure is PressureLevel.SOFT


@pytest.mark.parametrize("fused", [False, True])
def test_a_request_reserves_what_the_shared_estimator_says(fused: bool) -> None:
    arbiter = Arbiter(MemoryGuardSpec(), fused=fused)
    arbiter.observe(HOST, (engine("a", 1),))
    request = AdmissionRequest("a", "m", SHAPE, 1000, 200, 50, 2, 256)
    granted(arbiter.admit(request))
    case = PrefillCase(
        prompt_tokens=1000, cached_tokens=200, max_tokens=50, rows=2, chunk_tokens=256
    )
    peak = estimate_prefill(SHAPE, case, fused=fused).peak_bytes
    assert arbiter.state().reserved_bytes == peak
