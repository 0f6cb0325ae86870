"""The bytes of one engine's load: asking for them, holding them, giving them back.

Owns the reservation between the grant and its end. It reports answers as lifecycle events and
decides nothing; the slot says when to ask and when to let go. Units: bytes, seconds.
"""

import asyncio
from collections.abc import Callable

from manifests.errors import Code, Refusal, Retryable
from node_agent.pool.lifecycle import AdmissionDelayed, AdmissionRefused, Admitted, Event
from node_agent.pool.memory_side import LoadAdmission, LoadReservation

_FAULT_AGAIN_SECONDS = 1.0
# A load that must wait says soon what it waits for, then stands in line for long.
_FIRST_WAIT_SECONDS = 1.0


class LoadClaim:
    """One engine's claim on memory for its load; at most one reservation at a time."""

    def __init__(
        self, engine: str, admission: LoadAdmission, report: Callable[[Event], None]
    ) -> None:
        self._engine, self._admission, self._report = engine, admission, report
        self._asking: asyncio.Task[None] | None = None
        self._held: LoadReservation | None = None
        self._waits = False

    @property
    def held(self) -> bool:
        """Whether bytes are set aside for this engine."""
        return self._held is not None

    def ask(self, need_bytes: int, wait_seconds: float) -> None:
        """Ask in the background; the answer is reported as an event."""
        loop = asyncio.get_running_loop()
        most_seconds = wait_seconds if self._waits else min(wait_seconds, _FIRST_WAIT_SECONDS)
        self._asking = loop.create_task(self._ask(need_bytes, most_seconds))

    def cancel(self) -> None:
        """Leave the line."""
        if self._asking is not None:
            self._asking.cancel()

    def release(self) -> None:
        """Give the bytes back, if any are held."""
        held, self._held = self._held, None
        if held is not None:
            held.release()

    async def _ask(self, need_bytes: int, wait_seconds: float) -> None:
        try:
            answer = await self._admission.admit_load(
                self._engine, need_bytes, wait_seconds=wait_seconds
            )
        except Exception as fault:  # noqa: BLE001 - root of the task; the engine must not hang
            words = f"asking for memory failed: {type(fault).__name__}: {fault}"
            self._report(AdmissionDelayed(words, _FAULT_AGAIN_SECONDS))
            return
        if not isinstance(answer, Refusal):
            self._held, self._waits = answer, False
            self._report(Admitted())
            return
        words = f"{answer.message} {answer.hint}".strip()
        if answer.retryable is Retryable.LATER or answer.code is Code.QUEUE_FULL:
            self._waits = True
            # The next tick puts it in line again.
            self._report(AdmissionDelayed(words, 0.0))
        else:
            self._waits = False
            self._report(AdmissionRefused(words))
