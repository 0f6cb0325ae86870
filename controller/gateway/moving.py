"""What to send for the rest of a stream that moves, and whether a node is to be left; pure.

Called by the proxy.
"""

from collections.abc import Callable
from dataclasses import replace

from controller.gateway.exchange import Course, Exchange
from controller.gateway.sending.upstream import Call
from controller.gateway.settings import GatewaySettings
from manifests.wire.continuation import CONTINUE_PATH, CONTINUE_TYPE, TELL, TELL_HEADER, pack


def ask_to_tell(call: Call, settings: GatewaySettings) -> Call:
    """Return the call with the wish to be told tokens, where a stream may have to move."""
    if not call.stream or not settings.max_moves:
        return call
    return replace(call, headers={**call.headers, TELL_HEADER: TELL})


def ask_for_rest(call: Call, path: str, course: Course) -> Call:
    """Return the call for the rest of a stream of which the client has a part."""
    return replace(
        call,
        path=CONTINUE_PATH,
        headers={**call.headers, "content-type": CONTINUE_TYPE},
        body=pack(course.told.continuation(path), call.body),
    )


def continued(exchange: Exchange, course: Course, model: str) -> Exchange:
    """Return the exchange as it counts for placement: what was said is prompt now.

    Only the same model can go on with it, whatever others stand behind a Route.
    """
    peeked, said = exchange.peeked, course.told.tokens
    cap = None if peeked.max_tokens is None else max(1, peeked.max_tokens - said)
    facts = {
        name: replace(known, tokens=known.tokens + said) for name, known in exchange.facts.items()
    }
    return replace(
        exchange,
        model=model,
        models=(model,),
        peeked=replace(peeked, prompt_tokens=peeked.prompt_tokens + said, max_tokens=cap),
        facts=facts,
    )


def plan_leave(
    settings: GatewaySettings, has_data: Callable[[], bool], node_silent: Callable[[], float]
) -> Callable[[float], bool]:
    """Return when to leave a node in mid-answer: it and its answer are both silent for too long.

    An answer that has not begun waits longer, since its client would wait for all of it again.
    """

    def is_gone(silent_seconds: float) -> bool:
        limit = settings.move_after_seconds
        if not has_data():
            limit = settings.silence_seconds + settings.dead_seconds
        return silent_seconds >= limit and node_silent() >= limit

    return is_gone
