"""Counts each request's prompt once, as its node will, and tells who has how much of it cached.

Owns the tokenizers, the ids that were counted and the map of prefixes; never holds a request up
for long, and never refuses one: what cannot be counted is estimated, and the node answers what
cannot be rendered. Called by the handlers; run by the app.
"""

import asyncio
import hashlib
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp
import structlog

from controller.gateway.choice.prompt_facts import (
    CachedPrefixes,
    PromptFacts,
    PromptKind,
    Sharing,
    merge_facts,
    plan_kinds,
)
from controller.gateway.counting.tokenizer_shelf import TokenizerShelf
from controller.gateway.counting.tokenizers import PromptBody, Tokenizers, plan_sources
from controller.gateway.exchange import Exchange
from controller.gateway.http.sse import Usage
from controller.gateway.nodes.catalog import FleetView
from controller.gateway.nodes.endpoints import EndpointKey, EndpointView
from controller.gateway.nodes.fleet import Fleet
from controller.gateway.nodes.prefix_stream import PrefixMap
from controller.gateway.settings import GatewaySettings
from controller.metrics import PromptMetrics
from manifests.wire.gateway import ISOLATION_HEADER
from manifests.wire.tenant import TENANT_HEADER

_LOG = structlog.get_logger(__name__)

_CHAT_PATH, _TEXT_PATH = "/v1/chat/completions", "/v1/completions"
# Reports come many times a second; what they name is looked at this often.
_LOOK_SECONDS = 0.2
# Hashing more than this takes a thread, not the loop.
_LONG_BYTES = 256 * 1024
# A count that was wrong may be a matter of one moment: a Model's variables just changed.
_DISTRUST_SECONDS = 600.0
_COUNT_SECONDS_MAX = 20.0
# What an entry takes beside its ids, about.
_ENTRY_BYTES = 512


@dataclass(frozen=True, slots=True)
class _Plan:
    """Who may get requests of one model, and all the ways in which they make ids."""

    kinds: frozenset[PromptKind | None]
    endpoints: tuple[tuple[EndpointView, PromptKind | None], ...]


class Prompts:
    """All methods belong to one event loop."""

    def __init__(
        self,
        fleet: Fleet,
        settings: GatewaySettings,
        metrics: PromptMetrics,
        clock: Callable[[], float],
    ) -> None:
        """Prepare; `run` follows the fleet."""
        self._fleet, self._settings, self._clock = fleet, settings, clock
        self._metrics = metrics
        self._tokenizers = Tokenizers(settings.tokenizer_processes, clock)
        self._prefixes = PrefixMap(settings.prefix_names, metrics.count_dropped_names)
        self._known: OrderedDict[bytes, tuple[bytes, ...]] = OrderedDict()
        self._known_bytes = 0
        self._counting: dict[bytes, asyncio.Task[tuple[bytes, ...] | None]] = {}
        self._distrusted: dict[str, float] = {}
        self._planned_for: FleetView | None = None
        self._planned: dict[str, _Plan] = {}
        self._wake = asyncio.Event()
        fleet.listen(self._wake.set)

    async def run(self, session: aiohttp.ClientSession) -> None:
        """Follow what nodes have until cancelled; then end every process."""
        with tempfile.TemporaryDirectory(prefix="mlxfleet-tokenizers-") as temporary:
            directory = self._settings.tokenizer_dir or Path(temporary)
            shelf = TokenizerShelf(directory, self._settings.tokenizer_bytes)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._tokenizers.run(session, shelf))
                group.create_task(self._prefixes.run(session))
                while True:
                    self._wake.clear()
                    view = self._fleet.view()
                    self._prefixes.follow({it.key.node: it.address for it in view.endpoints})
                    self._tokenizers.want(
                        plan_sources((it.text_fingerprint, it.address) for it in view.endpoints)
                    )
                    self._metrics.set_sizes(len(self._tokenizers.pids()), self._prefixes.names)
                    await asyncio.sleep(_LOOK_SECONDS)
                    await self._wake.wait()

    @property
    def tokenizers(self) -> Tokenizers:
        """The processes."""
        return self._tokenizers

    @property
    def prefixes(self) -> PrefixMap:
        """Who holds which prefix."""
        return self._prefixes

    async def count(self, exchange: Exchange) -> Exchange:
        """Return the request with its prompt counted, or as it was when that is not possible."""
        if not exchange.peeked.prompt_body:
            return exchange
        view = self._fleet.view()
        facts: dict[str, PromptFacts] = {}
        ids: dict[EndpointKey, bytes] = {}
        endpoints: dict[EndpointKey, EndpointView] = {}
        for model in models_of(exchange):
            plan = self._plan(view, model)
            by_kind = await self._count_kinds(exchange, plan.kinds)
            merged = merge_facts(list(by_kind.values()))
            if merged is None:
                continue
            facts[model] = merged
            for item, kind in plan.endpoints:
                counted = by_kind.get(kind)
                if counted is not None:
                    ids[item.key], endpoints[item.key] = counted.ids, item
        if not facts:
            return exchange
        sharing = sharing_of(exchange)
        cached = CachedPrefixes(ids, lambda key: sharing.keys(endpoints[key]), self._prefixes.find)
        if any(len(item) > _LONG_BYTES for item in ids.values()):
            await asyncio.to_thread(cached.warm)
        return replace(exchange, facts=facts, cached=cached)

    def _plan(self, view: FleetView, model: str) -> _Plan:
        """Return who may get requests of a model, as long as the fleet is as it is."""
        if self._planned_for is not view:
            self._planned_for, self._planned = view, {}
        plan = self._planned.get(model)
        if plan is None:
            candidates = view.candidates(model)
            kinds = plan_kinds(candidates, view.engines)
            counted = tuple((it, kinds[it.key]) for it in candidates if it.key in kinds)
            plan = self._planned[model] = _Plan(frozenset(kinds.values()), counted)
        return plan

    def compare(self, exchange: Exchange, usage: Usage) -> None:
        """Learn from an answer whether the node had counted as we did; distrust what did not."""
        model = exchange.down.model or exchange.model
        facts = exchange.facts.get(model)
        told = usage.prompt_tokens
        if facts is None or not facts.exact or told <= 0 or facts.total_tokens == told:
            return
        view = self._fleet.view()
        kinds = set(plan_kinds(view.candidates(model), view.engines).values())
        kind = next(iter(kinds)) if len(kinds) == 1 else None
        if kind is None:
            return
        self._metrics.count("mismatch")
        self._distrusted[kind.text_fingerprint] = self._clock() + _DISTRUST_SECONDS
        _LOG.warning(
            "tokens_counted_otherwise",
            fingerprint=kind.text_fingerprint[:12],
            here=facts.total_tokens,
            node=told,
        )

    async def _count_kinds(
        self, exchange: Exchange, kinds: Collection[PromptKind | None]
    ) -> dict[PromptKind | None, PromptFacts | None]:
        """Return the facts of each kind, None where they are not to be had."""
        if len(kinds) == 1:
            [kind] = kinds
            return {kind: await self._count_one(exchange, kind)}
        order = list(kinds)
        found = await asyncio.gather(*(self._count_one(exchange, kind) for kind in order))
        return dict(zip(order, found, strict=True))

    async def _count_one(self, exchange: Exchange, kind: PromptKind | None) -> PromptFacts | None:
        if kind is None or self._is_distrusted(kind.text_fingerprint):
            self._metrics.count("estimated")
            return None
        began, settings = self._clock(), self._settings
        body = exchange.peeked.prompt_body
        prompt = PromptBody(is_chat(exchange), body, kind.variables)
        key = await self._key(kind, prompt)
        packed = self._known.get(key)
        outcome = "repeat"
        if packed is not None:
            self._known.move_to_end(key)
        else:
            seconds = settings.tokenizer_wait_seconds + len(body) / (
                settings.tokenizer_bytes_per_second
            )
            packed = await self._ask(key, kind, prompt, min(seconds, _COUNT_SECONDS_MAX))
            outcome = "counted" if packed else "estimated"
        self._metrics.observe(outcome, self._clock() - began)
        return PromptFacts.of(packed) if packed else None

    async def _ask(
        self, key: bytes, kind: PromptKind, prompt: PromptBody, seconds: float
    ) -> tuple[bytes, ...] | None:
        """Return the ids within so many seconds; whoever asks the same meanwhile gets the same.

        A count that takes longer goes on: a later attempt finds its result.
        """
        task = self._counting.get(key)
        if task is None:
            task = asyncio.create_task(self._encode(key, kind, prompt))
            self._counting[key] = task
        await asyncio.wait({task}, timeout=seconds)
        return task.result() if task.done() else None

    async def _encode(
        self, key: bytes, kind: PromptKind, prompt: PromptBody
    ) -> tuple[bytes, ...] | None:
        try:
            packed = await self._tokenizers.encode(
                kind.text_fingerprint, prompt, wait_seconds=self._settings.tokenizer_wait_seconds
            )
            if packed:
                self._remember(key, packed)
        except Exception:  # noqa: BLE001 - task root: an estimate serves as well
            _LOG.exception("prompt_not_counted", fingerprint=kind.text_fingerprint[:12])
            return None
        else:
            return packed
        finally:
            del self._counting[key]

    def _remember(self, key: bytes, packed: tuple[bytes, ...]) -> None:
        size = _size_bytes(packed)
        if size > self._settings.prompt_cache_bytes // 4:
            return
        self._known[key] = packed
        self._known_bytes += size
        while self._known_bytes > self._settings.prompt_cache_bytes:
            _, oldest = self._known.popitem(last=False)
            self._known_bytes -= _size_bytes(oldest)

    async def _key(self, kind: PromptKind, prompt: PromptBody) -> bytes:
        if len(prompt.body) > _LONG_BYTES:
            return await asyncio.to_thread(_digest, kind, prompt)
        return _digest(kind, prompt)

    def _is_distrusted(self, fingerprint: str) -> bool:
        until = self._distrusted.get(fingerprint)
        if until is not None and self._clock() >= until:
            del self._distrusted[fingerprint]
            return False
        return until is not None


def is_chat(exchange: Exchange) -> bool:
    """Whether the prompt is a chat; behind other paths, such as explain's, the body tells."""
    path = exchange.inbound.path
    has_messages = exchange.peeked.prompt_body.startswith(b'{"messages":')
    return path == _CHAT_PATH or (path != _TEXT_PATH and has_messages)


def models_of(exchange: Exchange) -> tuple[str, ...]:
    """Return the Models whose engines may get the request."""
    return exchange.models or (exchange.model,)


def sharing_of(exchange: Exchange) -> Sharing:
    """Return with whom a request shares cached prefixes, as its node will find it."""
    told = exchange.tenancy
    return Sharing(
        tenant=told.get(TENANT_HEADER, ""),
        cache_salt=exchange.peeked.cache_salt,
        isolated=told.get(ISOLATION_HEADER) == "tenant",
    )


def _size_bytes(packed: tuple[bytes, ...]) -> int:
    return _ENTRY_BYTES + sum(len(ids) for ids in packed)


def _digest(kind: PromptKind, prompt: PromptBody) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in (kind.text_fingerprint.encode(), kind.variables, b"%d" % prompt.chat):
        digest.update(len(part).to_bytes(4, "little") + part)
    digest.update(prompt.body)
    return digest.digest()
