"""The door of the gateway: who asks, may they, and what they hold while they are served.

Keeps the keyring current from the declared ApiKeys. Decisions are in `access` and `limits`,
counters in `quotas`. Called by the handlers.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from controller.gateway.http.asgi import Downstream, Inbound, RawHeader
from controller.gateway.http.sse import Usage
from controller.gateway.keys.access import Caller, Keyring, authenticate, plan_keyring, replace_key
from controller.gateway.keys.quotas import Quotas, Ticket
from controller.key_metrics import KeyMetrics
from manifests.errors import Refusal
from manifests.kinds.api_key import ApiKey
from manifests.wire.informer import Informer

_LOG = structlog.get_logger(__name__)
_CHALLENGE: tuple[RawHeader, ...] = ((b"www-authenticate", b"Bearer"),)


@dataclass(slots=True)
class Visit:
    """One admitted request; without a key it holds nothing. Settle it on every way out."""

    caller: Caller
    prompt_tokens: int
    ticket: Ticket | None = field(default=None, repr=False)


class Door:
    """Lets requests in; all methods belong to one event loop."""

    def __init__(
        self,
        keys: Informer,
        quotas: Quotas,
        metrics: KeyMetrics,
        epoch: Callable[[], float],
        *,
        require_key: bool,
    ) -> None:
        """`keys` is the live copy of the declared ApiKeys, run by the gateway."""
        self._keys, self._quotas, self._metrics, self._epoch = keys, quotas, metrics, epoch
        self._require_key = require_key
        self._ring = Keyring()
        self._open: bool | None = None
        keys.subscribe(self._changed)

    def identify(self, inbound: Inbound) -> Caller | Refusal:
        """Return who sent a request, or why nobody may."""
        ring = self._current()
        return authenticate(ring, inbound.headers, self._epoch(), require_key=not self._is_open())

    async def turn_away(self, down: Downstream, refusal: Refusal) -> None:
        """Answer a request whose sender is not known."""
        await down.refuse(refusal, _CHALLENGE if refusal.http_status == 401 else ())

    def refuse_uncounted(self, caller: Caller, down: Downstream) -> Refusal | None:
        """Return why no request of a key may start now, before its prompt is counted.

        Mutates: a refusal's headers. Takes nothing.
        """
        if caller.key is None:
            return None
        refusal = self._quotas.refuse_uncounted(caller.key)
        return None if refusal is None else self._refused(caller.key, down, refusal)

    def admit(self, caller: Caller, down: Downstream, cost: Usage) -> Visit | Refusal:
        """Take what a request may cost from its key's limits. Mutates: the answer's headers."""
        if caller.key is None:
            return Visit(caller, cost.prompt_tokens)
        ticket = self._quotas.admit(caller.key, cost.prompt_tokens + cost.completion_tokens)
        if isinstance(ticket, Refusal):
            return self._refused(caller.key, down, ticket)
        down.extra_headers += self._quotas.limit_headers(caller.key)
        return Visit(caller, cost.prompt_tokens, ticket)

    def settle(self, visit: Visit, down: Downstream, outcome: str) -> None:
        """Give everything back and count what the request really cost.

        An answer that was begun and never told its cost counts as its prompt, by estimate.
        """
        ticket, visit.ticket = visit.ticket, None
        if ticket is None:
            return
        usage = down.usage
        if usage is None:
            reached = down.model is not None and outcome in {"ok", "broken", "cancelled"}
            usage = Usage(visit.prompt_tokens if reached else 0, 0)
        self._quotas.settle(ticket, usage)
        self._metrics.count_served(
            visit.caller.name, outcome, usage.prompt_tokens, usage.completion_tokens
        )

    def _refused(self, key: ApiKey, down: Downstream, refusal: Refusal) -> Refusal:
        down.extra_headers += self._quotas.limit_headers(key)
        self._metrics.count_refused(str(key.metadata.name), refusal.code.value)
        return refusal

    def _is_open(self) -> bool:
        """Whether everyone may use the gateway; a key that this version cannot read closes it."""
        declared = self._keys.objects or self._keys.counts.unparsable
        return not self._require_key and not declared

    def _current(self) -> Keyring:
        if self._keys.synced and not self._ring.known:
            self._rebuild()
        return self._ring

    def _changed(self, name: str) -> None:
        if not self._keys.synced:
            return
        key = self._keys.objects.get(name)
        replaced = replace_key(self._ring, key) if isinstance(key, ApiKey) else None
        if replaced is None:
            self._rebuild()
        else:
            self._ring = replaced

    def _rebuild(self) -> None:
        keys = [item for item in self._keys.objects.values() if isinstance(item, ApiKey)]
        self._ring = plan_keyring(keys)
        self._quotas.forget_gone({item.metadata.uid or str(item.metadata.name) for item in keys})
        self._metrics.keep_labels(frozenset(str(item.metadata.name) for item in keys))
        self._announce()

    def _announce(self) -> None:
        """Say in the log, once and at every change, whether everyone may use the gateway."""
        is_open = self._is_open()
        if is_open is self._open:
            return
        self._open = is_open
        if is_open:
            _LOG.warning(
                "the gateway is open to everyone who reaches it: no ApiKey is declared; "
                "`mlxctl create key NAME` makes the first and closes it"
            )
        else:
            _LOG.info("the gateway asks for API keys", keys=len(self._ring.by_hash))
