"""Requests that share a prefix compute it once: who computes, who waits, who takes over.

Owns the state and its transitions; pure. The engine's scheduler holds the state, applies each
event, and acts on the turns that come back: COMPUTE means plan the restore again and prefill,
WAIT means leave the row alone. A computing request never waits, so no circle can form; a waiting
one is freed by a finished block, by the computing request's leaving, or by its own deadline.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum


class Turn(StrEnum):
    """What a request does now."""

    COMPUTE = "compute"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One request's turn. A waiting one waits for `digest`, computed by `computing_id`."""

    request_id: str
    turn: Turn
    digest: bytes = b""
    computing_id: str = ""


@dataclass(frozen=True, slots=True)
class _Waiting:
    request_id: str
    missing: tuple[bytes, ...]
    digest: bytes
    computing_id: str
    deadline_seconds: float


@dataclass(frozen=True, slots=True)
class Inflight:
    """Who computes which block and who waits, in the order of arrival.

    `computing` maps a block's digest to the one request that computes it. `wait_seconds` bounds
    each wait; a request that has waited so long computes for itself.
    """

    wait_seconds: float = 60.0
    computing: dict[bytes, str] = field(default_factory=dict)
    waiting: tuple[_Waiting, ...] = ()


Step = tuple[Inflight, tuple[Verdict, ...]]


def join(state: Inflight, request_id: str, missing: Sequence[bytes], now: float) -> Step:
    """Return the state with a request that lacks these blocks, and its turn.

    `missing` are names of blocks, in order, that the request must compute and that could be
    restored from once stored: of layouts with snapshot layers only those that get a snapshot.
    It waits for the deepest block of its own that one other request is computing.
    """
    state = _without(state, request_id)
    waiting = _wait(state, request_id, tuple(missing), now)
    if waiting is not None:
        state = replace(state, waiting=(*state.waiting, waiting))
        return state, (Verdict(request_id, Turn.WAIT, waiting.digest, waiting.computing_id),)
    claims = {digest: request_id for digest in missing if digest not in state.computing}
    state = replace(state, computing={**state.computing, **claims})
    return state, (Verdict(request_id, Turn.COMPUTE),)


def block_done(state: Inflight, request_id: str, digest: bytes, now: float) -> Step:
    """Return the state after a request computed and stored a block, and the turns it changes.

    Those who waited for just this block take their turn in the order of arrival: the first
    computes what follows, the next ones may wait for it. A block that could not be stored is
    reported all the same: they find it missing when they plan, and compute it. A claimed block
    that the request found stored after all is reported too.
    """
    if state.computing.get(digest) != request_id:
        return state, ()
    computing = {key: owner for key, owner in state.computing.items() if key != digest}
    waiting = tuple(
        replace(x, missing=x.missing[x.missing.index(digest) + 1 :])
        if digest in x.missing and digest != x.digest
        else x
        for x in state.waiting
    )
    state = replace(state, computing=computing, waiting=waiting)
    return _turns(state, [x for x in state.waiting if x.digest == digest], digest, now)


def leave(state: Inflight, request_id: str, now: float) -> Step:
    """Return the state without a request, and the turns of those who waited for it.

    Called when its prefill is done, and when it fails or is cancelled; the first of those who
    waited takes over what it left undone.
    """
    state = _without(state, request_id)
    return _turns(state, [x for x in state.waiting if x.computing_id == request_id], None, now)


def overdue(state: Inflight, now: float) -> Step:
    """Return the state after those who waited too long were told to compute for themselves."""
    late = [entry.request_id for entry in state.waiting if entry.deadline_seconds <= now]
    for request_id in late:
        state = _without(state, request_id)
    return state, tuple(Verdict(request_id, Turn.COMPUTE) for request_id in late)


def next_deadline(state: Inflight) -> float | None:
    """Return when `overdue` has something to say next."""
    return min((entry.deadline_seconds for entry in state.waiting), default=None)


def _turns(state: Inflight, freed: Sequence[_Waiting], done: bytes | None, now: float) -> Step:
    verdicts: list[Verdict] = []
    for entry in freed:
        state = _without(state, entry.request_id)
    for entry in freed:
        missing = entry.missing
        if done is not None:
            missing = missing[missing.index(done) + 1 :]
        state, step = join(state, entry.request_id, missing, now)
        verdicts += step
    return state, tuple(verdicts)


def _wait(
    state: Inflight, request_id: str, missing: tuple[bytes, ...], now: float
) -> _Waiting | None:
    """Return what a request waits for; None when nobody computes its first missing block.

    Someone who computes only later blocks of the chain has restored the first ones, so they will
    be found stored; waiting for them would be waiting for work that is not under way.
    """
    computing_id = state.computing.get(missing[0]) if missing else None
    if computing_id is None:
        return None
    deepest = missing[0]
    for digest in missing:
        if state.computing.get(digest) != computing_id:
            break
        deepest = digest
    return _Waiting(request_id, missing, deepest, computing_id, now + state.wait_seconds)


def _without(state: Inflight, request_id: str) -> Inflight:
    """Drop a request's claims and its own wait, not those who wait for it."""
    computing = {key: owner for key, owner in state.computing.items() if owner != request_id}
    waiting = tuple(x for x in state.waiting if x.request_id != request_id)
    return replace(state, computing=computing, waiting=waiting)
