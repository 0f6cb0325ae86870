"""What several nodes' noes mean together: who may still say yes, and what the client is told.

Pure. A node's `no` about memory means "not on this node", so it says nothing of larger ones.
Called by the proxy.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from controller.gateway.nodes.endpoints import EndpointView
from controller.gateway.sending.attempts import Lost, Refused, is_fault
from manifests.errors import Code, Refusal, Retryable
from manifests.kinds.engine import EnginePhase

_STARTING = frozenset({EnginePhase.PENDING, EnginePhase.DOWNLOADING, EnginePhase.LOADING})
_WAITING = frozenset({Retryable.LATER, Retryable.HERE})
_STARTING_RETRY_SECONDS = 5
_CROWDED_RETRY_SECONDS = 30
_WAITED_RETRY_SECONDS = 10


@dataclass(frozen=True, slots=True)
class No:
    """One endpoint's no to one request."""

    endpoint: EndpointView
    ending: Refused | Lost


def is_memory_refusal(ending: Refused | Lost) -> bool:
    """Whether a node said that the request does not fit into its memory."""
    return (
        isinstance(ending, Refused)
        and ending.refusal.code is Code.PREFILL_MEMORY_EXCEEDED
        and not is_fault(ending)
    )


def plan_candidates(
    candidates: Sequence[EndpointView], noes: Sequence[No]
) -> tuple[EndpointView, ...]:
    """Return who may still hold the request: those surely roomier than any node that never can.

    Without such, the others that are not surely too small, since nodes alike on paper differ in
    what their engines hold.
    """
    if not noes:
        return tuple(candidates)
    asked = {no.endpoint.key for no in noes}
    possible = tuple(
        item for item in candidates if item.key not in asked and _could_hold(item, noes)
    )
    nevers = _nevers(noes)
    roomier = tuple(
        item for item in possible if all(_is_roomier(item, no.endpoint) for no in nevers)
    )
    return roomier if nevers and any(item.accepting or item.wakes for item in roomier) else possible


def choose_answer(noes: Sequence[No], candidates: Sequence[EndpointView]) -> Refused | Lost:
    """Return which no the client gets, of at least one.

    What waiting helps comes first, with the shortest wait. When memory was the reason
    everywhere, the answer speaks for the fleet. A reasoned no says more than a lost connection.
    """
    refused = [no for no in noes if isinstance(no.ending, Refused) and not is_fault(no.ending)]
    waiting = [no.ending for no in refused if no.ending.refusal.retryable in _WAITING]
    if waiting:
        return min(waiting, key=lambda ending: ending.refusal.retry_after_seconds or 0)
    memory = [no for no in refused if is_memory_refusal(no.ending)]
    others = [no for no in refused if no not in memory and not _is_unloaded(no.ending)]
    if memory and not others:
        said = {no.endpoint.key for no in refused}
        left = [item for item in candidates if item.key not in said and _could_hold(item, noes)]
        return _speak_for_fleet(memory, left)
    return (refused or noes)[-1].ending


def _is_unloaded(ending: Refused | Lost) -> bool:
    return ending.refusal.code is Code.MODEL_NOT_FOUND


def _speak_for_fleet(memory: Sequence[No], left: Sequence[EndpointView]) -> Refused:
    """Word one answer: the node that comes closest, its ceiling and advice, and if to wait.

    `left` are the endpoints that gave no answer and may be large enough.
    """
    nearest = max(memory, key=_closeness)
    refusal, node = nearest.ending.refusal, nearest.endpoint.key.node
    hopeful = [item for item in left if item.accepting or item.wakes or item.phase in _STARTING]
    if hopeful:
        names = ", ".join(sorted({item.key.node for item in hopeful})[:3])
        words = f"The nodes that may take this request do not answer now: {names}. Node {node}: "
        wait = _STARTING_RETRY_SECONDS
    elif refusal.retryable is Retryable.NO:
        words, wait = f"No node can take this request. The nearest is {node}: ", None
    else:
        words = f"No node has room for this request now. The nearest is {node}: "
        wait = _CROWDED_RETRY_SECONDS
    spoken = replace(
        refusal,
        message=words + refusal.message,
        retryable=Retryable.NO if wait is None else Retryable.LATER,
        retry_after_seconds=wait,
        node=node,
    )
    return Refused(spoken.http_status, (), None, spoken)


def speak_of_never(refusal: Refusal, nearest: EndpointView) -> Refusal:
    """Return the fleet's answer to what no node can ever hold, in the nearest node's words."""
    ending = Refused(refusal.http_status, (), None, refusal)
    return _speak_for_fleet([No(nearest, ending)], ()).refusal


def refuse_full(most_waiting: int) -> Refusal:
    """Return the refusal of a request that would have to wait where too many do."""
    return Refusal(
        Code.QUEUE_FULL,
        f"No node has room now, and {most_waiting} requests wait already.",
        Retryable.LATER,
        hint="Send it again later, or add a node.",
        retry_after_seconds=_WAITED_RETRY_SECONDS,
    )


def refuse_waited(seconds: float, reason: str, deadline_seconds: float | None) -> Refusal:
    """Return the refusal of a request that found no room in its time."""
    if deadline_seconds is not None:
        return Refusal(
            Code.DEADLINE_EXCEEDED,
            f"The deadline of {deadline_seconds:g} seconds passed while the request waited for "
            f"room. {reason}",
            hint="Give it more deadline_seconds, or a higher priority.",
            param="deadline_seconds",
        )
    return Refusal(
        Code.QUEUE_FULL,
        f"No node had room for this request within {seconds:g} seconds. {reason}",
        Retryable.LATER,
        hint="Send it again later, or add a node.",
        retry_after_seconds=_WAITED_RETRY_SECONDS,
    )


def _closeness(no: No) -> tuple[bool, int]:
    """Order nodes: one that could hold it some day before one that never can, then by room."""
    refusal: Refusal = no.ending.refusal
    return refusal.retryable is not Retryable.NO, refusal.limit_bytes or 0


def _nevers(noes: Sequence[No]) -> list[No]:
    return [
        no
        for no in noes
        if is_memory_refusal(no.ending) and no.ending.refusal.retryable is Retryable.NO
    ]


def _could_hold(endpoint: EndpointView, noes: Sequence[No]) -> bool:
    """Whether a node is not surely too small, by its reported ceiling and tokens."""
    for no in _nevers(noes):
        need = no.ending.refusal.estimated_bytes
        if need is not None and 0 < endpoint.ceiling_bytes < need:
            return False
        if _is_roomier(no.endpoint, endpoint):
            return False
    return True


def _is_roomier(endpoint: EndpointView, other: EndpointView) -> bool:
    """Whether one node certainly gives this model more than another; unreported is unknown."""
    pairs = (
        (endpoint.tokens_fit_ever, other.tokens_fit_ever),
        (endpoint.ceiling_bytes, other.ceiling_bytes),
    )
    known = [(mine, its) for mine, its in pairs if mine and its]
    return any(mine > its for mine, its in known) and all(mine >= its for mine, its in known)
