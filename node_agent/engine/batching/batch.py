"""Rows decoded together, each fed on a cache of its own before it joins.

Owns the rows being fed and the batches, and the translation of mlx-lm's responses into plain
values. Greedy and seeded rows give the same tokens alone and in a batch, as far as the device's
kernels do. Called on the MLX thread.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from node_agent.engine.batching.decode_group import DecodeGroup, plan_join
from node_agent.engine.batching.drafts import DraftBook
from node_agent.engine.batching.grouping import choose_group
from node_agent.engine.batching.lanes import Lanes
from node_agent.engine.batching.logprobs import pick_logprobs
from node_agent.engine.batching.prefill import Lockstep, RowPrefill, lockstep_bytes
from node_agent.engine.batching.row_batch import Newcomer
from node_agent.engine.batching.sampling import Samplers, is_filtered, processors_for
from node_agent.engine.messages import Generate
from node_agent.engine.prefix.prefix_cache import PrefixCache, RowPrefix
from node_agent.engine.rows import HasRoom, JoinCost, PrefillStep, TokenStep, never


class BatchRunner:
    """Continuous batching over one model."""

    def __init__(self, lanes: Lanes, chunk_tokens: int, max_running: int, book: DraftBook) -> None:
        self._lanes = lanes
        # The most prompt tokens of one row that a pass feeds, and the most rows there may be.
        self.chunk_tokens = chunk_tokens
        self.max_rows = max_running
        self._samplers = Samplers()
        self._commands: dict[int, Generate] = {}
        self._feeding: dict[int, RowPrefill] = {}
        self._groups: list[DecodeGroup] = []
        self._next_uid = 0
        # With a prefix cache, rows start from stored prefixes from then on, and store theirs.
        self.prefixes: PrefixCache | None = None
        self._kept: dict[int, RowPrefix] = {}
        # The prompts of rows that joined with all of it fed, by uid, until what is left of them is
        # stored. Units: tokens.
        self._said_tokens: dict[int, int] = {}
        self._book, self.draft_tally = book, book.tally

    def insert(self, command: Generate) -> int:
        """Take a row in, with an empty cache, and return its uid."""
        uid, self._next_uid = self._next_uid, self._next_uid + 1
        self._commands[uid] = command
        prefix = None
        if self.prefixes is not None:
            prefix = self._kept[uid] = self.prefixes.row(command)
        self._feeding[uid] = RowPrefill(self._lanes, command.prompt, prefix=prefix)
        return uid

    def remove(self, uid: int, *, keep: bool = False) -> None:
        """Drop a row between steps; with `keep` what it decoded is stored first."""
        del self._commands[uid]
        prefix = self._kept.pop(uid, None)
        if (feeding := self._feeding.pop(uid, None)) is not None:
            if feeding.lockstep is not None:
                feeding.lockstep.end()
            if prefix is not None:
                prefix.close()
            return
        for group in self._groups:
            if uid in group.uids:
                _keep_said(self._said_tokens, prefix, group, uid)
                if keep and prefix is not None:
                    view = partial(group.view, uid)
                    prefix.note_decoded(group.tokens(uid), view, finished=True)
                group.remove(uid)
        self._groups = [group for group in self._groups if group.uids]

    def prompt(self, uid: int) -> RowPrefill:
        """Return the prompt of a row that has not joined yet."""
        return self._feeding[uid]

    def lockstep_bytes(self, uids: Sequence[int]) -> int | None:
        """Return what feeding rows together takes besides their chunks; None if they cannot be."""
        return lockstep_bytes([self._feeding[uid] for uid in uids])

    def feed_together(self, uids: Sequence[int], chunk_tokens: int) -> tuple[PrefillStep, ...]:
        """Feed each of these rows its next chunk, all in one forward pass."""
        rows = {uid: self._feeding[uid] for uid in uids}
        lockstep = self._feeding[uids[0]].lockstep
        if lockstep is None or lockstep.uids != tuple(uids):
            self.part()
            lockstep = Lockstep(self._lanes, rows)
        return lockstep.feed(chunk_tokens)

    def compact(self) -> bool:
        """Give back what rows that ended still hold; False when they hold nothing."""
        given = [group.compact() for group in self._groups]
        return any(given)

    def part(self) -> None:
        """Give rows that were fed together caches of their own."""
        for row in self._feeding.values():
            if row.lockstep is not None:
                row.lockstep.end()

    def join_cost(self, uid: int, *, apart: bool) -> JoinCost:
        """Return what it takes to decode a row with the others."""
        row, group = self._feeding[uid].cache, self._group_for(uid, apart=apart)
        uids = [uid] if group is None else [uid, *group.uids]
        filtered_rows = sum(is_filtered(self._commands[one].sampling) for one in uids)
        if group is None:
            return plan_join(None, row, 1, filtered_rows)
        return plan_join(group.cache, row, max(group.places, len(uids)), filtered_rows)

    def join(self, uid: int, *, apart: bool) -> PrefillStep:
        """Feed a row's last token if it is not fed, and decode it from the next step on."""
        command, group = self._commands[uid], self._group_for(uid, apart=apart)
        prefill = self._feeding.pop(uid)
        last_tokens, logits = len(command.prompt) - prefill.fed_tokens, prefill.take_logits()
        cache = prefill.hand_over()
        stops = () if command.ignore_eos else command.stop_token_ids
        newcomer = Newcomer(
            uid=uid,
            prompt=command.prompt,
            max_tokens=command.max_tokens,
            sampler=self._samplers.sampler_for(command.sampling, command.said_tokens),
            stop_token_ids=frozenset(stops),
            processors=processors_for(command.sampling, len(command.prompt) - command.said_tokens),
            logits=logits,
        )
        if logits is not None:
            self._said_tokens[uid] = len(command.prompt)
        if group is None:
            group = DecodeGroup(self._lanes.model, newcomer, cache, self._book)
            self._groups.append(group)
        else:
            group.add(newcomer, cache)
        total_tokens = len(command.prompt)
        return PrefillStep(uid, total_tokens, total_tokens, last_tokens, 0.0)

    def first_tokens(self) -> tuple[TokenStep, ...]:
        """Return what rows say first, as soon as it is drawn."""
        return self._read([one for group in self._groups for one in group.take_first()])

    def decode(self, has_room: HasRoom = never) -> tuple[TokenStep, ...]:
        """Decode one token of each row that has joined; draw the first of those that just did.

        One that decodes alone may have drafts verified, and say more.
        """
        if len(self._groups) != 1:
            has_room = never
        responses: list[Any] = []
        for group in self._groups:
            for uid in [one for one in group.uids if one in self._said_tokens]:
                _keep_said(self._said_tokens, self._kept.get(uid), group, uid)
            ours = group.decode(has_room)
            _keep(self._kept, group, ours)
            responses += [*ours, *group.take_first()]
        self._groups = [group for group in self._groups if group.uids]
        return self._read(responses)

    def _group_for(self, uid: int, *, apart: bool) -> DecodeGroup | None:
        """Return the batch that a row joins; None for one of its own."""
        lengths = [group.lengths_tokens for group in self._groups]
        index = None if apart else choose_group(lengths, len(self._commands[uid].prompt))
        return None if index is None else self._groups[index]

    def _read(self, responses: Sequence[Any]) -> tuple[TokenStep, ...]:
        steps = _translate(responses, self._commands)
        for step in steps:
            if step.finish is not None:
                del self._commands[step.uid]
        return steps


def _translate(responses: Sequence[Any], commands: Mapping[int, Generate]) -> tuple[TokenStep, ...]:
    tops = [commands[response.uid].sampling.top_logprobs for response in responses]
    wanted = [
        (response.logprobs, response.token, top)
        for response, top in zip(responses, tops, strict=True)
        if top is not None
    ]
    picked = iter(pick_logprobs(wanted) if wanted else ())
    return tuple(
        TokenStep(
            uid=response.uid,
            token=response.token,
            finish=response.finish_reason,
            logprobs=None if top is None else next(picked),
        )
        for response, top in zip(responses, tops, strict=True)
    )


def _keep_said(
    said_tokens: dict[int, int], prefix: RowPrefix | None, group: DecodeGroup, uid: int
) -> None:
    """Store what is left of a prompt that was fed to its end. Mutates: `said_tokens`."""
    tokens = said_tokens.pop(uid, 0)
    if tokens and prefix is not None:
        prefix.note_fed(partial(group.view, uid), tokens)


def _keep(kept: dict[int, RowPrefix], group: DecodeGroup, responses: Sequence[Any]) -> None:
    """Store the prefixes of rows that ended or filled a block. Mutates: ended ones go."""
    if not kept:
        return
    for ended in responses:
        if ended.finish_reason is not None and (prefix := kept.pop(ended.uid, None)):
            view = partial(getattr, ended, "prompt_cache")
            prefix.note_decoded(ended.all_tokens, view, finished=True)
    for uid, held_tokens in zip(group.uids, group.lengths_tokens, strict=True):
        due = kept.get(uid)
        if due is not None and due.is_due(held_tokens):
            due.note_decoded(group.tokens(uid), partial(group.view, uid), finished=False)
