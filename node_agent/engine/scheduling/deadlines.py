"""When requests must have ended. Pure bookkeeping without a clock; the scheduler calls it."""

from dataclasses import dataclass

from manifests.errors import Code, Retryable
from node_agent.engine.messages import Abort, Generate


@dataclass(frozen=True, slots=True)
class _Due:
    at_seconds: float
    given_seconds: float


class Deadlines:
    """The requests that may not take for ever, by request id."""

    def __init__(self) -> None:
        self._due: dict[str, _Due] = {}

    def start(self, command: Generate, now: float) -> None:
        """Note a request that came now; one without a deadline changes nothing."""
        seconds = command.deadline_seconds
        if seconds > 0:
            self._due[command.request_id] = _Due(now + seconds, seconds)

    def forget(self, request_id: str) -> None:
        """Note that a request has ended; one without a deadline changes nothing."""
        self._due.pop(request_id, None)

    def overdue(self, now: float) -> list[Abort]:
        """Return how the requests whose time is over end, the longest overdue first."""
        if not self._due:
            return []
        over = sorted(
            (due.at_seconds, request_id, due.given_seconds)
            for request_id, due in self._due.items()
            if due.at_seconds <= now
        )
        return [_abort(request_id, seconds) for _, request_id, seconds in over]

    def clear(self) -> None:
        """Let every request go."""
        self._due.clear()


def _abort(request_id: str, seconds: float) -> Abort:
    return Abort(
        request_id=request_id,
        code=Code.DEADLINE_EXCEEDED.value,
        message=f"the deadline of {seconds:g} seconds has passed",
        retryable=Retryable.NO.value,
    )
