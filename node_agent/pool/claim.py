"""The bytes of one engine's load: asking for them, holding them, giving them back.

Owns the reservation between the grant and its end. It reports answers as lifecycle events and
decides nothing; the slot says when to ask and when to let go. Units: bytes, seconds.
"""

import asyncio
from collections.abc import Callable

from manifests.errors import Refusal, Retryable
from node_agent.pool.lifecycle import AdmissionDelayed, AdmissionRefused, Admitted, Event
from node_agent.pool.memory_side import LoadAdmission, LoadReservation

_AGAIN_SECONDS = 1.0


class LoadClaim:
    """One engine's claim on memory for its load; at most one reservation at a time."""

    def __init__(
        self, engine: str, admission: LoadAdmission, report: Callable[[Event], None]
    ) -> None:
        self._engine, self._admission, self._report = engine, admission, report
        self._asking: asyncio.Task[None] | None = None
        self._held: LoadReservation | None = None

    @property
    def held(self) -> bool:
        """Whether bytes are set aside for this engine."""
        return self._held is not None

    def ask(self, need_bytes: int, wait_seconds: float) -> None:
        """Ask in the background; the answer is reported as an event."""
        loop = asyncio.get_running_loop()
        self._asking = loop.create_task(self._ask(need_bytes, wait_seconds))

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
            self._report(AdmissionDelayed(words, _AGAIN_SECONDS))
            return
        if not isinstance(answer, Refusal):
            self._held = answer
            self._report(Admitted())
        elif answer.retryable is Retryable.LATER:
            again_seconds = float(answer.retry_after_seconds or _AGAIN_SECONDS)
            self._report(AdmissionDelayed(_words(answer), again_seconds))
        else:
            self._report(AdmissionRefused(_words(answer)))


def _words(refusal: Refusal) -> str:
    return f"{refusal.message} {refusal.hint}".strip()
