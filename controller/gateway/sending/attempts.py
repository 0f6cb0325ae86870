"""How one upstream attempt can end, and what to do next; pure.

Called by the proxy, which carries out what `plan_next` says.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

from controller.gateway.http.sse import Usage
from controller.gateway.nodes.breaker import Verdict
from controller.gateway.settings import GatewaySettings
from manifests.errors import Code, Refusal, Retryable

_STALE_MAX = 3
_ABOUT_ONE_NODE = frozenset({Code.MODEL_NOT_FOUND, Code.PREFILL_MEMORY_EXCEEDED})


@dataclass(frozen=True, slots=True)
class Finished:
    """The client has its whole answer. `errored` when the agent ended it by an error event."""

    usage: Usage | None = None
    errored: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """The agent said no with a status; `body` is its own, None when that is not our form."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes | None
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class Lost:
    """No answer: the connection failed or went before any data reached the client.

    `unreachable` means that the request never left; `stale` that a kept connection had been
    closed by the agent before it saw the request.
    """

    refusal: Refusal
    unreachable: bool = False
    stale: bool = False


@dataclass(frozen=True, slots=True)
class Broken:
    """The answer ended badly after the client had data."""

    refusal: Refusal


@dataclass(frozen=True, slots=True)
class Cut:
    """The answer ended badly after the client had data, and another endpoint can go on with it.

    `fault` is false where the endpoint left on purpose, as one that shuts down does.
    """

    refusal: Refusal
    fault: bool = True


Ending = Finished | Refused | Lost | Broken | Cut


class Next(StrEnum):
    """What to do after an attempt."""

    DONE = "done"
    SAME = "same"
    ELSEWHERE = "elsewhere"
    GIVE_UP = "give_up"


@dataclass(frozen=True, slots=True)
class History:
    """The attempts so far, the last one included.

    Attempts and elapsed seconds count from when the request came, or its stream was last cut;
    `faults` and `cuts` from the beginning. `left_seconds` is what is left of the client's time.
    """

    attempts: int
    faults: int
    stale: int
    elapsed_seconds: float
    cuts: int = 0
    left_seconds: float = math.inf


def judge(ending: Ending) -> Verdict:
    """Return what an attempt says about its endpoint's health."""
    match ending:
        case Finished(errored=errored):
            return Verdict.FAULT if errored else Verdict.ALIVE
        case Lost(stale=True):
            return Verdict.NOTHING
        case Lost(unreachable=True):
            return Verdict.UNREACHABLE
        case Lost() | Broken():
            return Verdict.FAULT
        case Cut(fault=fault):
            return Verdict.FAULT if fault else Verdict.ALIVE
        case Refused():
            return Verdict.FAULT if is_fault(ending) else Verdict.ALIVE


def is_fault(refused: Refused) -> bool:
    """Whether a refusal is a failure of the endpoint and not a reasoned no."""
    if refused.status < 500:
        return False
    faults = {Code.ENGINE_DIED, Code.ENGINE_STUCK, Code.UPSTREAM_LOST, Code.INTERNAL}
    return refused.body is None or refused.refusal.code in faults


def label(ending: Ending) -> str:
    """Return the outcome of an attempt for metrics; one of a fixed set."""
    match ending:
        case Finished(errored=errored):
            return "broken" if errored else "ok"
        case Broken():
            return "broken"
        case Cut():
            return "cut"
        case Lost(unreachable=unreachable):
            return "unreachable" if unreachable else "lost"
        case Refused():
            if is_fault(ending):
                return "fault"
            if ending.refusal.code is Code.PREFILL_MEMORY_EXCEEDED:
                return "refused"
            return "client_error" if ending.refusal.retryable is Retryable.NO else "refused"


def plan_next(ending: Ending, history: History, settings: GatewaySettings) -> Next:
    """Return whether to stop, or where to try again."""
    if isinstance(ending, Finished | Broken):
        return Next.DONE
    if isinstance(ending, Cut):
        return _plan_move(history, settings)
    if history.elapsed_seconds >= settings.retry_deadline_seconds:
        return Next.GIVE_UP
    if isinstance(ending, Lost) and ending.stale and history.stale <= _STALE_MAX:
        return Next.SAME
    if history.attempts >= settings.max_attempts or history.faults >= settings.max_faults:
        return Next.GIVE_UP
    if isinstance(ending, Lost) or can_help_elsewhere(ending):
        return Next.ELSEWHERE
    return Next.GIVE_UP


def _plan_move(history: History, settings: GatewaySettings) -> Next:
    """Return whether a stream goes on elsewhere.

    A node that went silent may have panicked under this very prompt, so every end that the node
    did not choose counts as a fault, and the bound on faults is that of the whole request.
    """
    spent = history.cuts > settings.max_moves or history.faults >= settings.max_faults
    return Next.GIVE_UP if spent or history.left_seconds <= 0 else Next.ELSEWHERE


def can_help_elsewhere(refused: Refused) -> bool:
    """Whether another endpoint may say yes where this one said no."""
    # The gateway knows the model, so an agent that does not has just unloaded it. A no about
    # memory is one about that node's memory.
    if is_fault(refused) or refused.refusal.code in _ABOUT_ONE_NODE:
        return True
    return refused.refusal.retryable in {Retryable.ELSEWHERE, Retryable.LATER, Retryable.HERE}


def counts_as_fault(ending: Ending) -> bool:
    """Whether an attempt may have harmed the endpoint it went to."""
    if isinstance(ending, Refused):
        return is_fault(ending)
    if isinstance(ending, Cut):
        return ending.fault
    return isinstance(ending, Broken) or (
        isinstance(ending, Lost) and not ending.unreachable and not ending.stale
    )


def lost(message: str, *, unreachable: bool = False, stale: bool = False) -> Lost:
    """Return a loss with its OpenAI error."""
    refusal = Refusal(Code.UPSTREAM_LOST, message, Retryable.LATER, hint="Send the request again.")
    return Lost(refusal, unreachable, stale)
