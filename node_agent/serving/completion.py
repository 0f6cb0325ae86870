"""Runs one request: lease, tokenize, preflight, reserve, generate, give everything back.

Owns the order of those steps and that each is undone on every way out. Everything that can be
refused is refused in `open`, before a route has sent a byte. Called by the OpenAI routes.
"""

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import structlog
from msgspec import structs

from manifests.errors import Code, EngineError, Refusal, RequestError, Retryable
from manifests.prompt.body import ChatPrompt, fill_empty, merge_variables
from manifests.prompt.messages import TooLong
from node_agent.engine.messages import (
    Failed,
    Finished,
    Generate,
    PrefillProgress,
    Tokens,
)
from node_agent.memory.base import Admission, AdmissionRequest, Reservation
from node_agent.pool.base import Lease, Pool, TokenStream
from node_agent.serving.beginning import begin_rows
from node_agent.serving.commands import Share, plan_command
from node_agent.serving.continuing import name_again, resume
from node_agent.serving.deadline import engine_deadline_seconds, left_seconds, over_refusal
from node_agent.serving.limits import context_limit_tokens, plan_output_tokens, refuse_length
from node_agent.serving.request import Endpoint, GenerationRequest
from node_agent.serving.responses import Identity, Usage
from node_agent.serving.rows import RowDelta, RowEnd, RowText
from node_agent.sources.base import ModelFiles
from node_agent.text.models import TextModel, TextModels

_LOG = structlog.get_logger(__name__)
_DEFAULT_CHUNK_TOKENS = 512
# How long a request waits for a model that was unloaded to make room.
_WAKE_WAIT_SECONDS = 120.0
# And how long it stands in line for memory, unless the agent is told otherwise.
MEMORY_WAIT_SECONDS = 30.0


@dataclass(slots=True)
class Timing:
    """When things happened, in seconds since the request came. None means not yet."""

    prefill_seconds: float = 0.0
    first_token_seconds: float | None = None
    last_token_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Completions:
    """The way from a request to a running answer."""

    pool: Pool
    admission: Admission
    texts: TextModels
    monotonic: Callable[[], float]
    epoch: Callable[[], float]
    memory_wait_seconds: float = MEMORY_WAIT_SECONDS

    async def open(self, request: GenerationRequest) -> "Run":
        """Start the request. Raises RequestError or EngineError with nothing left behind."""
        clock = Clock(self.monotonic, self.monotonic())
        wait_seconds = min(_WAKE_WAIT_SECONDS, clock.left(request))
        lease = await self.pool.lease_ready(request.lease_name, wait_seconds=wait_seconds)
        if isinstance(lease, Refusal):
            raise RequestError(lease)
        try:
            return await self._start(request, lease, clock)
        except BaseException:
            lease.release()
            raise

    async def _start(self, request: GenerationRequest, lease: Lease, clock: "Clock") -> "Run":
        spec = lease.view.want.spec
        files = _files(lease)
        text = await self.texts.get(files)
        limit = context_limit_tokens(spec.context, files.shape.context_tokens)
        prompts = await encode_prompts(request, text, spec.chat_template.variables, limit)
        if isinstance(prompts, TooLong):
            raise RequestError(refuse_length(prompts.tokens, limit))
        sizes = [len(prompt) for prompt in prompts]
        outputs = plan_output_tokens(sizes, request.max_tokens, spec.sampling, limit)
        if isinstance(outputs, Refusal):
            raise RequestError(outputs)
        # After the lengths: looking at every id of a prompt that never fits takes the loop's time.
        _check_ids(request, prompts, len(text.ready.pieces))
        base = uuid.uuid4().hex
        prefix = "chatcmpl" if request.endpoint is Endpoint.CHAT else "cmpl"
        identity = Identity(
            endpoint=request.endpoint,
            id=f"{prefix}-{base}",
            created=int(self.epoch()),
            model=request.model,
            system_fingerprint=f"fp_{files.fingerprint.rpartition(':')[2][:12]}",
            logprobs=request.top_logprobs is not None,
            include_usage=request.include_usage,
        )
        if request.continues is not None:
            identity = name_again(identity, request.continues, len(text.ready.pieces))
        rows = begin_rows(request, text, spec.reasoning_parser, prompts)
        caps = [outputs[index // request.choices] for index in range(request.rows)]
        endings = resume(request, rows, caps)
        commands = [
            plan_command(request, lease, text, Share(index, base, prompts, caps))
            for index in range(request.rows)
            if endings[index] is None
        ]
        if request.deadline_seconds is not None and not clock.left(request):
            raise RequestError(over_refusal(request.deadline_seconds))
        # Last, so that nothing can fail between the grant and the run that gives it back.
        reservation = await self._admit(request, lease, commands, clock)
        run = Run(identity, lease, reservation, sum(sizes), clock)
        left = engine_deadline_seconds(clock.left(request))
        run.start(rows, endings, [structs.replace(one, deadline_seconds=left) for one in commands])
        return run

    async def _admit(
        self, request: GenerationRequest, lease: Lease, commands: Sequence[Generate], clock: "Clock"
    ) -> Reservation:
        """Return the memory for what there is to generate. Raises RequestError."""
        if not commands:
            return _NothingReserved()
        reservation = await self.admission.admit(
            _admission_request(lease, commands),
            wait_seconds=min(self.memory_wait_seconds, clock.left(request)),
        )
        if isinstance(reservation, Refusal):
            raise RequestError(reservation)
        return reservation


class _NothingReserved:
    """The reservation of a request that has nothing left to generate."""

    def release(self) -> None:
        """Give nothing back."""


@dataclass(frozen=True, slots=True)
class Clock:
    """Seconds since one request came."""

    monotonic: Callable[[], float]
    began: float

    def seconds(self) -> float:
        """Return the time since then."""
        return self.monotonic() - self.began

    def left(self, request: GenerationRequest) -> float:
        """Return what is left of a request's time; infinite without a deadline."""
        elapsed_seconds = request.elapsed_seconds + self.seconds()
        return left_seconds(request.deadline_seconds, elapsed_seconds)


@dataclass(slots=True)
class _Running:
    """A row and its stream; an ended row's stream is still read until the engine is done."""

    text: RowText
    stream: TokenStream
    ended: bool = False
    progress: tuple[int, int] = (0, 0)
    cached_tokens: int = 0


@dataclass(slots=True)
class Run:
    """A request in the hands of an engine.

    Read with `next` until it returns None, and `close` in every case. Memory and lease go back
    once the engine has let go of every row, which is a step later than `close`.
    """

    identity: Identity
    lease: Lease
    reservation: Reservation
    prompt_tokens: int
    clock: Clock
    timing: Timing = field(default_factory=Timing)
    _rows: list[_Running] = field(default_factory=list)
    _events: "asyncio.Queue[RowDelta | RowEnd | Refusal]" = field(default_factory=asyncio.Queue)
    _pumps: set[asyncio.Task[None]] = field(default_factory=set)
    _unended: int = 0
    _texts: list[RowText] = field(default_factory=list)
    _said_tokens: int = 0

    def start(
        self,
        texts: Sequence[RowText],
        endings: Sequence[Sequence[RowDelta | RowEnd] | None],
        commands: Sequence[Generate],
    ) -> None:
        """Send the rows to the engine, but those that have their endings.

        Mutates: the lease and the reservation are ours now.
        """
        self._said_tokens = sum(text.tokens for text in texts)
        left = iter(commands)
        for text, ending in zip(texts, endings, strict=True):
            self._texts.append(text)
            if ending is None:
                self._rows.append(_Running(text, self.lease.generate(next(left))))
                continue
            for event in ending:
                self._events.put_nowait(event)
        self._unended = len(self._rows)
        if not self._rows:
            self._give_back()
        for row in self._rows:
            pump = asyncio.create_task(self._pump(row))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumped)

    @property
    def progress(self) -> tuple[int, int]:
        """Prompt tokens fed so far and in all, over the rows that have begun."""
        done = sum(row.progress[0] for row in self._rows)
        return done, sum(row.progress[1] for row in self._rows) or self.prompt_tokens

    @property
    def usage(self) -> Usage:
        """What the request has cost so far; a prompt with several choices counts once."""
        cached = max((row.cached_tokens for row in self._rows), default=0)
        generated = sum(text.tokens for text in self._texts)
        return Usage(self.prompt_tokens, generated, min(cached, self.prompt_tokens))

    @property
    def usage_here(self) -> Usage:
        """The same without the tokens that another node generated."""
        usage = self.usage
        return replace(usage, completion_tokens=usage.completion_tokens - self._said_tokens)

    @property
    def rows(self) -> int:
        """How many answers there are."""
        return len(self._texts)

    async def next(self) -> RowDelta | RowEnd | None:
        """Return the next event of any row, None after the last. Raises EngineError."""
        if not self._unended and self._events.empty():
            return None
        event = await self._events.get()
        if isinstance(event, Refusal):
            raise EngineError(event)
        return event

    def close(self) -> None:
        """Stop the rows that still run; a second call does nothing."""
        for row in self._rows:
            if not row.ended:
                self._end(row, [])
                row.stream.cancel()

    def _pumped(self, pump: asyncio.Task[None]) -> None:
        self._pumps.discard(pump)
        if not self._pumps:
            self._give_back()

    def _give_back(self) -> None:
        self.reservation.release()
        self.lease.release()

    async def _pump(self, row: _Running) -> None:
        try:
            async for event in row.stream:
                if not row.ended:
                    self._take(row, event)
            if not row.ended:
                died = "The engine ended before the answer did."
                self._end(row, [Refusal(Code.ENGINE_DIED, died, Retryable.ELSEWHERE)])
        except Exception:  # noqa: BLE001  task root: the client must get an answer
            _LOG.exception("row_failed", engine=self.lease.view.want.name)
            message = "The answer could not be written."
            self._end(row, [Refusal(Code.INTERNAL, message, Retryable.ELSEWHERE)])
            row.stream.cancel()

    def _take(self, row: _Running, event: object) -> None:
        if isinstance(event, PrefillProgress):
            row.progress = (event.done_tokens, event.total_tokens)
            self.timing.prefill_seconds += event.seconds
        elif isinstance(event, Tokens):
            self._take_tokens(row, event)
        elif isinstance(event, Finished):
            row.cached_tokens = event.cached_tokens
            self._take_finished(row, event)
        elif isinstance(event, Failed):
            self._end(row, [_failure(event)])

    def _take_tokens(self, row: _Running, event: Tokens) -> None:
        now = self.clock.seconds()
        if self.timing.first_token_seconds is None:
            self.timing.first_token_seconds = now
        self.timing.last_token_seconds = now
        for delta in row.text.feed(event.ids, event.logprobs):
            self._events.put_nowait(delta)
        if row.text.stopped:
            self._end(row, [row.text.close("stop")])
            row.stream.cancel()

    def _take_finished(self, row: _Running, event: Finished) -> None:
        if event.reason == "cancelled":
            message = "The engine cancelled the request."
            self._end(row, [Refusal(Code.CANCELLED, message, Retryable.ELSEWHERE)])
            return
        self._end(row, row.text.end(event.reason))

    def _end(self, row: _Running, events: Sequence[RowDelta | RowEnd | Refusal]) -> None:
        """End a row that still runs, with its last events."""
        if row.ended:
            return
        row.ended = True
        self._unended -= 1
        for event in events:
            self._events.put_nowait(event)


async def encode_prompts(
    request: GenerationRequest, text: TextModel, variables: dict[str, object], limit_tokens: int
) -> list[list[int]] | TooLong:
    """Return the ids of each prompt; an empty text becomes the start token alone."""
    prompt, most_tokens = request.prompt, limit_tokens - 1
    if isinstance(prompt, ChatPrompt):
        merged = merge_variables(variables, prompt.variables)
        ids = await text.encode_chat(prompt.messages, prompt.tools, merged, most_tokens=most_tokens)
        return ids if isinstance(ids, TooLong) else [ids]
    if prompt.token_ids:
        return prompt.token_ids
    encoded = await text.encode_texts(prompt.texts, most_tokens=most_tokens)
    if isinstance(encoded, TooLong):
        return encoded
    return [fill_empty(ids, text.ready.bos_token_id) for ids in encoded]


def _check_ids(
    request: GenerationRequest, prompts: Sequence[Sequence[int]], vocabulary: int
) -> None:
    param = "messages" if request.endpoint is Endpoint.CHAT else "prompt"
    if not all(prompts):
        message = "The prompt is empty and this model has no start token."
        raise RequestError(Refusal(Code.INVALID_VALUE, message, param=param))
    if any(max(prompt) >= vocabulary for prompt in prompts):
        message = f"Token ids must be below {vocabulary}."
        raise RequestError(Refusal(Code.INVALID_VALUE, message, param=param))
    if any(token_id >= vocabulary for token_id in request.sampling.logit_bias):
        message = f"logit_bias must use token ids below {vocabulary}."
        raise RequestError(Refusal(Code.INVALID_VALUE, message, param="logit_bias"))


def _admission_request(lease: Lease, commands: Sequence[Generate]) -> AdmissionRequest:
    view = lease.view
    spec = view.want.spec
    loaded = view.loaded.chunk_tokens if view.loaded is not None else 0
    return AdmissionRequest(
        engine=view.want.name,
        model=spec.model,
        shape=_files(lease).shape,
        prompt_tokens=max(len(one.prompt) for one in commands),
        cached_tokens=0,
        max_tokens=max(one.max_tokens for one in commands),
        rows=len(commands),
        chunk_tokens=loaded or spec.prefill.chunk_tokens or _DEFAULT_CHUNK_TOKENS,
    )


def _files(lease: Lease) -> ModelFiles:
    files = lease.view.files
    if files is None:
        message = f"The engine of {lease.view.want.spec.model} has no files yet."
        raise EngineError(Refusal(Code.ENGINE_NOT_READY, message, Retryable.ELSEWHERE))
    return files


def _failure(event: Failed) -> Refusal:
    codes = {code.value for code in Code}
    places = {place.value for place in Retryable}
    return Refusal(
        Code(event.code) if event.code in codes else Code.INTERNAL,
        event.message,
        Retryable(event.retryable) if event.retryable in places else Retryable.ELSEWHERE,
    )
