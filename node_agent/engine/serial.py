"""Rows run one at a time, for models whose caches mlx-lm cannot merge into a batch.

Owns one row's cache at a time. Same steps and results as `batch.py`, so the scheduler does not
know the difference; the rest of the requests wait their turn.
"""

import time
from dataclasses import dataclass, field
from typing import Any, cast

import mlx.core as mx
from mlx import nn
from mlx_lm.models.cache import make_prompt_cache

from node_agent.engine.logprobs import pick_logprobs
from node_agent.engine.messages import Generate
from node_agent.engine.rows import PrefillStep, StepResult, TokenStep
from node_agent.engine.sampling import Processor, Sampler, Samplers, processors_for


@dataclass(slots=True)
class _Row:
    uid: int
    command: Generate
    sampler: Sampler
    processors: list[Processor]
    stops: frozenset[int]
    cache: list[Any]
    fed_tokens: int = 0
    output: list[int] = field(default_factory=list)


class SerialRunner:
    """One row at a time over one model."""

    def __init__(self, model: nn.Module, chunk_tokens: int) -> None:
        self._model = model
        self._chunk_tokens = chunk_tokens
        self._samplers = Samplers()
        self._row: _Row | None = None
        self._next_uid = 0

    @property
    def max_rows(self) -> int:
        """Always one."""
        return 1

    @property
    def chunk_tokens(self) -> int:
        """The most prompt tokens one step feeds."""
        return self._chunk_tokens

    def insert(self, command: Generate) -> int:
        """Take the only row and return its uid."""
        uid, self._next_uid = self._next_uid, self._next_uid + 1
        self._row = _Row(
            uid=uid,
            command=command,
            sampler=self._samplers.sampler_for(command.sampling),
            processors=processors_for(command.sampling, len(command.prompt)),
            stops=frozenset(() if command.ignore_eos else command.stop_token_ids),
            cache=make_prompt_cache(self._model),
        )
        return uid

    def remove(self, uid: int) -> None:
        """Drop the row."""
        if self._row is not None and self._row.uid == uid:
            self._row = None

    def step(self) -> StepResult:
        """Feed one chunk of the prompt, or decode one token."""
        row = self._row
        if row is None:
            return StepResult()
        if row.fed_tokens < len(row.command.prompt) - 1:
            return StepResult(prefills=(self._feed(row),))
        prefills: tuple[PrefillStep, ...] = ()
        total = len(row.command.prompt)
        if not row.output:
            prefills = (PrefillStep(row.uid, total, total, 1, 0.0),)
        token = self._decode(row)
        if token.finish is not None:
            self._row = None
        return StepResult(prefills=prefills, tokens=(token,))

    def close(self) -> None:
        """Let the row's cache go."""
        self._row = None

    def _feed(self, row: _Row) -> PrefillStep:
        started_seconds = time.perf_counter()
        total = len(row.command.prompt)
        end = min(row.fed_tokens + self._chunk_tokens, total - 1)
        chunk = row.command.prompt[row.fed_tokens : end]
        self._model(mx.array([chunk]), cache=row.cache)
        mx.eval([layer.state for layer in row.cache])
        mx.clear_cache()
        row.fed_tokens = end
        seconds = time.perf_counter() - started_seconds
        return PrefillStep(row.uid, end, total, len(chunk), seconds)

    def _decode(self, row: _Row) -> TokenStep:
        command = row.command
        last = row.output[-1] if row.output else command.prompt[-1]
        logits = self._model(mx.array([[last]]), cache=row.cache)[:, -1, :]
        if row.processors:
            context = mx.array(command.prompt + row.output, dtype=mx.int32)
            for process in row.processors:
                logits = process(context, logits)
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        token = cast(int, row.sampler(logprobs).item())
        row.output.append(token)
        finish = "length" if len(row.output) >= command.max_tokens else None
        if token in row.stops:
            finish = "stop"
        top = command.sampling.top_logprobs
        picked = None if top is None else pick_logprobs([(logprobs[0], token, top)])[0]
        return TokenStep(row.uid, token, finish, picked)
