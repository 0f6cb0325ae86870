"""The gateway's tokenizer processes: one for each text fingerprint that nodes report.

Owns fetching the files, starting, asking, restarting and ending the processes. Whoever asks gets
ids or None at once or soon: a tokenizer that is not there never holds a request up. Called by
`prompts`; all methods belong to one event loop, and all blocking work runs elsewhere.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import aiohttp
import structlog

from controller.gateway.counting.tokenizer_fetch import FetchError, fetch_bundle, order_sources
from controller.gateway.counting.tokenizer_shelf import TokenizerShelf
from manifests.prompt.bundle import BundleError
from manifests.prompt.files import is_fingerprint
from manifests.prompt.messages import EncodeBody, PackedPrompts
from manifests.prompt.process import ProcessLostError, TokenizerLink

_LOG = structlog.get_logger(__name__)

_RETRY_SECONDS, _RETRY_SECONDS_MAX = 0.5, 60.0
# A process that lived for so long did not die of its own files.
_SOUND_SECONDS = 30.0
_START_SECONDS = 120.0
# No prompt takes so long; a process that says nothing has hung.
_HUNG_SECONDS = 120.0
# Beyond this the processor is short, and an estimate at once is worth more than a late count.
_MOST_WAITING = 64
# Only what was not asked for so long makes place for another process.
_IDLE_SECONDS = 30.0
_LOADS_AT_ONCE = 2


@dataclass(frozen=True, slots=True)
class PromptBody:
    """What a process needs to find a request's prompts. `variables` is JSON."""

    chat: bool
    body: bytes = field(repr=False)
    variables: bytes = b"{}"


@dataclass(slots=True)
class _Entry:
    """One fingerprint: loading, ready, or waiting to be tried again."""

    loading: asyncio.Task[None] | None = None
    link: TokenizerLink | None = None
    started_seconds: float = 0.0
    used_seconds: float = 0.0
    seen_seconds: float = 0.0
    failures: int = 0
    retry_seconds: float = 0.0


class Tokenizers:
    """All of them; `run` must run for any to be loaded."""

    def __init__(self, most_processes: int, clock: Callable[[], float]) -> None:
        self._most, self._clock = most_processes, clock
        self._entries: dict[str, _Entry] = {}
        self._sources: Mapping[str, Sequence[str]] = {}
        self._group: asyncio.TaskGroup | None = None
        self._session: aiohttp.ClientSession | None = None
        self._shelf: TokenizerShelf | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Semaphore(_LOADS_AT_ONCE)
        self._writer = asyncio.Lock()

    async def run(self, session: aiohttp.ClientSession, shelf: TokenizerShelf) -> None:
        """Load what is wanted until cancelled; then end every process."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group, self._session, self._shelf = group, session, shelf
                self.want(self._sources)
                await asyncio.Event().wait()
        finally:
            self._group = None
            for entry in self._entries.values():
                self._leave(entry)
            self._entries.clear()
            await asyncio.gather(*self._closing)

    def want(self, sources: Mapping[str, Sequence[str]]) -> None:
        """Take which nodes have which fingerprint now; load what is new while there is place.

        What nobody has any more ends after a while: a node may only be restarting its own.
        """
        self._sources = {name: list(of) for name, of in sources.items() if is_fingerprint(name)}
        now = self._clock()
        for fingerprint in self._sources:
            entry = self._entry(fingerprint)
            if entry is not None:
                entry.seen_seconds = now
        for fingerprint, entry in tuple(self._entries.items()):
            if now - entry.seen_seconds > _IDLE_SECONDS:
                self._leave(self._entries.pop(fingerprint))

    def ready(self, fingerprint: str) -> bool:
        """Whether a process answers for this fingerprint now."""
        entry = self._entries.get(fingerprint)
        return entry is not None and entry.link is not None and entry.link.alive

    def pids(self) -> dict[str, int]:
        """Return the processes that run."""
        found = self._entries.items()
        return {name: it.link.pid for name, it in found if it.link is not None and it.link.alive}

    async def encode(
        self, fingerprint: str, prompt: PromptBody, *, wait_seconds: float
    ) -> tuple[bytes, ...] | None:
        """Return the packed ids of every prompt; None when they cannot be had now, or at all.

        Waits so long for a tokenizer that is being loaded, and then for the ids as long as they
        take: whoever asks sets a bound. A body that cannot be rendered has no ids.
        """
        entry = self._entry(fingerprint, asked=True)
        if entry is None:
            return None
        entry.used_seconds = self._clock()
        if entry.link is None and entry.loading is not None and wait_seconds > 0:
            await asyncio.wait({entry.loading}, timeout=wait_seconds)
        link = entry.link
        if link is None or not link.alive or link.waiting >= _MOST_WAITING:
            return None
        hung = asyncio.get_running_loop().call_later(_HUNG_SECONDS, _kill_hung, fingerprint, link)
        try:
            reply = await link.ask(
                lambda number: EncodeBody(
                    number=number, chat=prompt.chat, body=prompt.body, variables=prompt.variables
                )
            )
        except ProcessLostError:
            return None
        finally:
            hung.cancel()
        return tuple(reply.prompts) if isinstance(reply, PackedPrompts) else None

    def _entry(self, fingerprint: str, *, asked: bool = False) -> _Entry | None:
        """Return the entry of a fingerprint that nodes have, loading it if need be and may be.

        Only what is `asked` for takes the place of another.
        """
        if fingerprint not in self._sources:
            return None
        now = self._clock()
        entry = self._entries.setdefault(fingerprint, _Entry(seen_seconds=now))
        self._note_death(entry, fingerprint)
        idle = entry.link is None and entry.loading is None and now >= entry.retry_seconds
        if idle and self._group is not None and self._has_place(asked=asked):
            entry.loading = self._group.create_task(self._load(fingerprint, entry))
        return entry

    def _has_place(self, *, asked: bool) -> bool:
        """Whether one more process may run, ending the longest unused one if need be."""
        busy = [it for it in self._entries.values() if it.link is not None or it.loading]
        if len(busy) < self._most:
            return True
        if not asked:
            return False
        stale = [it for it in busy if it.link is not None and not it.link.waiting]
        oldest = min(stale, key=lambda it: it.used_seconds, default=None)
        if oldest is None or self._clock() - oldest.used_seconds < _IDLE_SECONDS:
            return False
        self._leave(oldest)
        oldest.link = None
        return True

    def _note_death(self, entry: _Entry, fingerprint: str) -> None:
        if entry.link is None or entry.link.alive:
            return
        _LOG.warning("tokenizer_died", fingerprint=fingerprint[:12])
        sound = self._clock() - entry.started_seconds >= _SOUND_SECONDS
        self._leave(entry)
        entry.link = None
        entry.failures = 0 if sound else entry.failures
        self._fail(entry)

    def _fail(self, entry: _Entry) -> None:
        entry.failures += 1
        wait = min(_RETRY_SECONDS * 2.0 ** min(entry.failures - 1, 10), _RETRY_SECONDS_MAX)
        entry.retry_seconds = self._clock() + wait

    def _leave(self, entry: _Entry) -> None:
        """End what an entry runs; nobody waits for it."""
        if entry.loading is not None:
            entry.loading.cancel()
        if entry.link is not None:
            closing = asyncio.create_task(entry.link.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def _load(self, fingerprint: str, entry: _Entry) -> None:
        """Get the files and start the process. Task root: a failure is tried again later."""
        try:
            async with self._turn:
                entry.link = await self._start(fingerprint, entry)
            now = self._clock()
            entry.started_seconds = entry.used_seconds = now
            _LOG.info("tokenizer_ready", fingerprint=fingerprint[:12])
        except Exception as fault:  # noqa: BLE001 - task root: requests go on with estimates
            self._fail(entry)
            reason = str(fault) or type(fault).__name__
            _LOG.warning("tokenizer_not_loaded", fingerprint=fingerprint[:12], reason=reason[:300])
        finally:
            entry.loading = None

    async def _start(self, fingerprint: str, entry: _Entry) -> TokenizerLink:
        shelf = self._shelf
        assert shelf is not None  # noqa: S101 - run has set it
        directory = await asyncio.to_thread(shelf.find, fingerprint)
        if directory is None:
            directory = await self._fetch(fingerprint, shelf, entry.failures)
        async with asyncio.timeout(_START_SECONDS):
            link = await TokenizerLink.start(directory, ids_only=True)
        # The process has read the files itself, and says which they were.
        if link.ready.text_fingerprint != fingerprint:
            await link.close()
            raise BundleError("the files on the disk were changed")
        return link

    async def _fetch(self, fingerprint: str, shelf: TokenizerShelf, failures: int) -> Path:
        """Return the directory of files that some node gave and that are what they should be."""
        assert self._session is not None  # noqa: S101 - run has set it
        faults: list[str] = []
        for address in order_sources(self._sources.get(fingerprint, ()), failures):
            try:
                bundle = await fetch_bundle(self._session, address, fingerprint)
                put = partial(shelf.put, fingerprint, bundle, frozenset(self._entries))
                async with self._writer:
                    return await asyncio.to_thread(put)
            except (FetchError, BundleError) as fault:
                faults.append(str(fault))
        raise FetchError("; ".join(faults[:4]) or "no node has the files any more")


def plan_sources(reported: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the addresses that have each fingerprint, from pairs of fingerprint and address."""
    sources: dict[str, list[str]] = {}
    for fingerprint, address in reported:
        if fingerprint:
            held = sources.setdefault(fingerprint, [])
            if address not in held:
                held.append(address)
    return sources


def _kill_hung(fingerprint: str, link: TokenizerLink) -> None:
    _LOG.warning("tokenizer_hung", fingerprint=fingerprint[:12])
    link.kill()
