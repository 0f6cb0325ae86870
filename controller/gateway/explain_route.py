"""`POST /fleet/v1/explain`: where an OpenAI request would go now, without sending it.

The body is checked as a request's is, so a bad one gets the error it would get. Mounted by `app`.
"""

from collections.abc import Callable

from starlette.types import Receive, Scope, Send

from controller.gateway.choice.choosing import refuse_never
from controller.gateway.choice.explain import describe_shortage, explain
from controller.gateway.choice.selection import Decision, Outcome
from controller.gateway.exchange import Exchange
from controller.gateway.handlers import Completions
from controller.gateway.http.asgi import ClientLeftError, Downstream, Inbound
from controller.gateway.proxy import Proxy


class Explain:
    """Answers explanations."""

    def __init__(self, completions: Completions, proxy: Proxy, clock: Callable[[], float]) -> None:
        """`completions` checks the body, `proxy` decides."""
        self._completions, self._proxy, self._clock = completions, proxy, clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one."""
        inbound = Inbound.from_scope(scope, receive)
        down = Downstream(send, inbound.request_id, self._clock)
        try:
            exchange = await self._completions.prepare(inbound, down, self._clock(), explains=True)
        except ClientLeftError:
            return
        if not isinstance(exchange, Exchange):
            return
        decision = self._proxy.consider(exchange)
        explanation = explain(decision, exchange.model, _say(decision))
        await down.answer_json(explanation.model_dump(mode="json", by_alias=True))


def _say(decision: Decision) -> str:
    """Return what the client would be told, or why it would wait."""
    if decision.outcome is Outcome.NEVER:
        refusal = refuse_never(decision)
        return "" if refusal is None else f"{refusal.message} {refusal.hint}".strip()
    if decision.outcome is Outcome.WAIT:
        return describe_shortage(decision)
    return ""
