"""A decision in words: the response header, the reason why nobody has room, the explain answer.

Pure. Called by the proxy and the explain route.
"""

from functools import lru_cache

from controller.gateway.choice.selection import Candidate, Decision, Excluded
from manifests.units import format_bytes
from manifests.wire.explain import RouteCandidate, RouteExplanation, RouteSeconds

ROUTE_CHARS_MAX = 511
_NODES_TOLD = 4
_SENTENCES = {
    Excluded.NO_ROOM: "has no room",
    Excluded.FULL: "has all its places taken",
    Excluded.CLAIMED: "is claimed by requests that wait already",
}
_WORDS = {
    Excluded.NOT: "",
    Excluded.CLOSED: "closed",
    Excluded.TRIED: "tried",
    Excluded.BREAKER: "failing",
    Excluded.CLAIMED: "claimed",
    Excluded.NO_ROOM: "no room",
    Excluded.NEVER: "too small",
    Excluded.CONTEXT: "context",
    Excluded.FULL: "full",
    Excluded.SLOWER: "slower",
}


def describe_route(decision: Decision, waited_seconds: float = 0.0) -> str:
    """Return the decision as one short line of ASCII, for a response header."""
    parts = [_describe_winner(decision)] if decision.won is not None else [decision.why.value]
    if waited_seconds > 0:
        parts[0] += f", waited {waited_seconds:.1f}s"
    parts += [
        _describe_other(item) for item in decision.candidates if item.excluded is not Excluded.NOT
    ]
    line = parts[0]
    for index, part in enumerate(parts[1:], 1):
        longer = f"{line}; {part}"
        if len(longer) > ROUTE_CHARS_MAX - 12:
            line += f"; +{len(parts) - index} more"
            break
        line = longer
    return line.encode("ascii", "replace").decode()[:ROUTE_CHARS_MAX]


def describe_shortage(decision: Decision | None) -> str:
    """Return a sentence about what each node would have needed, for the answer after a wait."""
    if decision is None:
        return ""
    told = [
        f"node {item.endpoint.key.node} has {format_bytes(item.fit.have_bytes)} free of the "
        f"{format_bytes(item.fit.need_bytes)} needed"
        if item.excluded is Excluded.NO_ROOM and item.fit.known
        else f"node {item.endpoint.key.node} {_SENTENCES[item.excluded]}"
        for item in decision.candidates
        if item.excluded in {Excluded.NO_ROOM, Excluded.FULL, Excluded.CLAIMED}
    ]
    text = "; ".join(told[:_NODES_TOLD])
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def explain(decision: Decision, model: str, message: str = "") -> RouteExplanation:
    """Return everything a decision was made from."""
    winner = decision.winner
    return RouteExplanation(
        model=model,
        prompt_tokens=decision.demand.prompt_tokens,
        output_tokens=decision.demand.output_tokens,
        exact=decision.demand.exact,
        outcome=decision.outcome.value,
        why=decision.why.value,
        node="" if winner is None else winner.key.node,
        engine="" if winner is None else winner.key.engine,
        route=describe_route(decision),
        message=message,
        candidates=tuple(_explain_one(item) for item in decision.candidates),
    )


def _explain_one(item: Candidate) -> RouteCandidate:
    scored = None if item.scored is None else item.scored.parts
    return RouteCandidate(
        node=item.endpoint.key.node,
        engine=item.endpoint.key.engine,
        phase=item.endpoint.phase.value,
        excluded=item.excluded.value,
        known=item.fit.known,
        need_bytes=item.fit.need_bytes,
        have_bytes=item.fit.have_bytes,
        ever_bytes=item.fit.ever_bytes,
        fits_now=item.fit.fits_now,
        fits_ever=item.fit.fits_ever,
        limited_by=item.fit.limited_by.value,
        cached_tokens=item.cached_tokens,
        seconds=None
        if scored is None
        else RouteSeconds(
            total=round(scored.total, 4),
            queue=round(scored.queue, 4),
            prefill=round(scored.prefill, 4),
            restore=round(scored.restore, 4),
            decode=round(scored.decode, 4),
            wake=round(scored.wake, 4),
            penalty=round(scored.penalty, 4),
        ),
    )


def _describe_winner(decision: Decision) -> str:
    won = decision.won
    assert won is not None  # noqa: S101 - the caller has looked
    fit, key = won.fit, won.endpoint.key
    words = [f"{key.node}/{key.engine} {decision.why.value}"]
    if fit.known:
        words[0] += f" {_size(fit.need_bytes)} of {_size(fit.have_bytes)}"
    if won.cached_tokens:
        words.append(f"{won.cached_tokens} of {decision.demand.prompt_tokens} cached")
    if won.scored is not None:
        words.append(f"{won.scored.seconds:.1f}s")
    return ", ".join(words)


def _describe_other(item: Candidate) -> str:
    words = f"{item.endpoint.key.node} {_WORDS[item.excluded]}"
    if item.excluded is Excluded.SLOWER and item.scored is not None:
        words += f" {item.scored.seconds:.1f}s"
    return words


@lru_cache(maxsize=4096)
def _size(count: int) -> str:
    return format_bytes(count).replace(" ", "")
