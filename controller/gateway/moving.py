"""What to send for the rest of a stream that moves, and whether a node is to be left; pure.

Called by the proxy.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

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


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What there is to know of one attempt while it goes on.

    `has_data`: the client has a part of the answer. `node_silent`: for how many seconds the node
    has not reported. `has_elsewhere`: another node takes requests of its Models.
    """

    has_data: Callable[[], bool]
    node_silent: Callable[[], float]
    has_elsewhere: Callable[[], bool]


def plan_leave(settings: GatewaySettings, around: Surroundings) -> Callable[[float], bool]:
    """Return when to leave a node: it and its answer are both silent for too long.

    A node that is busy, were it with a prompt of many minutes, goes on reporting. An answer that
    has not begun has more patience where there is nobody else to ask.
    """

    def is_gone(silent_seconds: float) -> bool:
        silent_seconds = min(silent_seconds, around.node_silent())
        if silent_seconds < settings.move_after_seconds:
            return False
        if around.has_data() or around.has_elsewhere():
            return True
        return silent_seconds >= settings.silence_seconds + settings.dead_seconds

    return is_gone
