"""A model whose memory stayed wired is not started again; others are."""

from manifests.errors import Refusal, Retryable
from node_agent.memory.base import Reservation
from node_agent.memory.stranded_gate import StrandedGate
from node_agent.memory.stranded_plan import Stranded

GIB = 1 << 30


class Held:
    def release(self) -> None:
        """Nothing is held."""


class Willing:
    def __init__(self) -> None:
        self.asked: list[tuple[str, int, float]] = []

    async def admit_load(
        self, engine: str, need_bytes: int, *, wait_seconds: float = 0.0
    ) -> Reservation | Refusal:
        self.asked.append((engine, need_bytes, wait_seconds))
        return Held()


async def test_only_the_engine_that_left_its_memory_behind_is_refused() -> None:
    inner, stuck = Willing(), [Stranded("big", 400 * GIB, 424 * GIB, 1.0, proven=True)]
    gate = StrandedGate(inner, lambda: tuple(stuck))
    refusal = await gate.admit_load("big", 5)
    assert isinstance(refusal, Refusal)
    assert "400 GiB" in refusal.message
    assert "reboot" in refusal.hint
    assert refusal.retryable is Retryable.ELSEWHERE
    assert not isinstance(await gate.admit_load("small", 5, wait_seconds=2.0), Refusal)
    assert inner.asked == [("small", 5, 2.0)]
    stuck.clear()
    assert not isinstance(await gate.admit_load("big", 5), Refusal)
