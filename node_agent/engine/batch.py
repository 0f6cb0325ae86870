"""Rows decoded together, each fed on a cache of its own before it joins.

Owns the rows being fed and the batches, and the translation of mlx-lm's responses into plain
values. Greedy and seeded rows give the same tokens alone and in a batch, as far as the device's
kernels do. Called on the MLX thread.
"""

from collections.abc import Sequence
from typing import Any

from mlx import nn
from mlx_lm.generate import StopSequences

from node_agent.engine.decode_group import DecodeGroup, Newcomer, plan_join
from node_agent.engine.grouping import choose_group
from node_agent.engine.logprobs import pick_logprobs
from node_agent.engine.messages import Generate, TokenLogprobs
from node_agent.engine.prefill import RowPrefill
from node_agent.engine.rows import JoinCost, PrefillStep, TokenStep
from node_agent.engine.sampling import Samplers, processors_for


class BatchRunner:
    """Continuous batching over one model."""

    def __init__(self, model: nn.Module, chunk_tokens: int, max_running: int) -> None:
        self._model = model
        self._chunk_tokens = chunk_tokens
        self._max_rows = max_running
        self._samplers = Samplers()
        self._no_stops = StopSequences()
        self._commands: dict[int, Generate] = {}
        self._feeding: dict[int, RowPrefill] = {}
        self._groups: list[DecodeGroup] = []
        self._next_uid = 0

    @property
    def max_rows(self) -> int:
        """How many rows are fed and decoded at most."""
        return self._max_rows

    @property
    def chunk_tokens(self) -> int:
        """The most prompt tokens one step feeds."""
        return self._chunk_tokens

    def insert(self, command: Generate) -> int:
        """Take a row in, with an empty cache, and return its uid."""
        uid, self._next_uid = self._next_uid, self._next_uid + 1
        self._commands[uid] = command
        self._feeding[uid] = RowPrefill(self._model, command.prompt)
        return uid

    def remove(self, uid: int) -> None:
        """Drop a row between steps."""
        del self._commands[uid]
        if self._feeding.pop(uid, None) is not None:
            return
        for group in self._groups:
            if uid in group.uids:
                group.remove(uid)
        self._drop_empty_groups()

    def held_tokens(self, uid: int) -> int:
        """Return how many prompt tokens a row's cache holds."""
        return self._feeding[uid].fed_tokens

    def next_chunk_tokens(self, uid: int, limit_tokens: int) -> int:
        """Return what a row's next chunk would feed; 0 when only the last token is left."""
        return self._feeding[uid].next_chunk_tokens(limit_tokens)

    def feed(self, uid: int, chunk_tokens: int) -> PrefillStep:
        """Feed a row's next chunk."""
        return self._feeding[uid].feed(uid, chunk_tokens)

    def join_cost(self, uid: int, *, apart: bool) -> JoinCost:
        """Return what it takes to decode a row with the others."""
        row = self._feeding[uid].cache
        group = None if apart else self._choose_group(uid)
        if group is None:
            return plan_join(None, row, 1)
        return plan_join(group.cache, row, len(group.uids) + 1)

    def join(self, uid: int, *, apart: bool) -> PrefillStep:
        """Feed a row's last token and decode it from the next step on."""
        command, group = self._commands[uid], None if apart else self._choose_group(uid)
        cache = self._feeding.pop(uid).hand_over()
        no_stops = command.ignore_eos or not command.stop_token_ids
        newcomer = Newcomer(
            uid=uid,
            prompt=command.prompt,
            max_tokens=command.max_tokens,
            sampler=self._samplers.sampler_for(command.sampling),
            stops=self._no_stops
            if no_stops
            else StopSequences([[token] for token in command.stop_token_ids]),
            processors=processors_for(command.sampling, len(command.prompt)),
        )
        if group is None:
            self._groups.append(DecodeGroup(self._model, newcomer, cache))
        else:
            group.add(newcomer, cache)
        total_tokens = len(command.prompt)
        return PrefillStep(uid, total_tokens, total_tokens, 1, 0.0)

    def decode(self) -> tuple[TokenStep, ...]:
        """Decode one token of each row that has joined."""
        responses: list[Any] = []
        for group in self._groups:
            responses += group.decode()
        self._drop_empty_groups()
        return self._read(responses)

    def _choose_group(self, uid: int) -> DecodeGroup | None:
        lengths = [group.lengths_tokens for group in self._groups]
        index = choose_group(lengths, self._feeding[uid].fed_tokens + 1)
        return None if index is None else self._groups[index]

    def _drop_empty_groups(self) -> None:
        self._groups = [group for group in self._groups if group.uids]

    def _read(self, responses: Sequence[Any]) -> tuple[TokenStep, ...]:
        wanted = [
            (response.uid, response.logprobs, response.token, top)
            for response in responses
            if (top := self._commands[response.uid].sampling.top_logprobs) is not None
        ]
        picked: dict[int, TokenLogprobs] = {}
        if wanted:
            found = pick_logprobs([(row, token, top) for _, row, token, top in wanted])
            picked = {uid: one for (uid, *_), one in zip(wanted, found, strict=True)}
        steps = tuple(
            TokenStep(
                uid=response.uid,
                token=response.token,
                finish=response.finish_reason,
                logprobs=picked.get(response.uid),
            )
            for response in responses
        )
        for step in steps:
            if step.finish is not None:
                del self._commands[step.uid]
        return steps
