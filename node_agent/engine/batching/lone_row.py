"""The drafts of a row that is alone in its batch: whether, how many, and the pass that proves them.

Owns the drafts of each row of a batch, and the timing of passes. Without a draft the next pass is
begun before the last has ended; with one the last is waited for. Called by `decode_group.py` on
the MLX thread.
"""

import time
from collections.abc import Container, Sequence

from mlx_lm.generate import GenerationBatch

from node_agent.engine.batching.drafts import DraftBook, PlainSpans, RowDrafts
from node_agent.engine.batching.row_batch import RowBatch
from node_agent.engine.rows import DraftPass, HasRoom


class LoneRow:
    """The steps of a batch, with drafts while it has one row."""

    def __init__(self, batch: RowBatch, book: DraftBook | None) -> None:
        """Without a book nothing is drafted."""
        self._batch, self._book = batch, book
        self._drafts: dict[int, RowDrafts] = {}
        self._spans = PlainSpans()

    def verify(self, told: Container[int], has_room: HasRoom) -> list[GenerationBatch.Response]:
        """Draft and verify, if that pays and has room; return what the row says, or nothing.

        The token after that is drawn. Of a row that was `told` the next token is known already.
        For another it is waited for only if a draft that begins with it would pay.
        """
        batch = self._batch
        if self._book is None or len(batch.uids) != 1:
            return []
        uid, tokens = batch.uids[0], batch.tokens[0]
        if (drafts := self._drafts.get(uid)) is None:
            drafts = self._drafts[uid] = RowDrafts(self._book, tokens)
        drafts.note(tokens)
        most_tokens = batch.most_drafts()
        if uid not in told and not drafts.plan(most_tokens):
            return []
        next_token = batch.next_token()
        drafts.note(tokens, next_token)
        draft_tokens = 0 if batch.ends_with(next_token) else drafts.plan(most_tokens)
        while draft_tokens and not has_room(DraftPass(len(tokens), draft_tokens + 1)):
            draft_tokens //= 2
        draft = drafts.draft(draft_tokens, batch.stops_with)
        return self._prove(drafts, draft) if draft else []

    def _prove(self, drafts: RowDrafts, draft: Sequence[int]) -> list[GenerationBatch.Response]:
        self._spans.cut()
        began_seconds = time.perf_counter()
        responses = self._batch.verify(draft)
        seconds = time.perf_counter() - began_seconds
        drafts.note_verified(len(draft), len(responses) - 1, seconds)
        return responses

    def go_on(self) -> list[GenerationBatch.Response]:
        """Say the next token of each row, and begin the pass for the one after."""
        uids = list(self._batch.uids)
        began_seconds = time.perf_counter()
        responses: list[GenerationBatch.Response] = self._batch.next()
        span = self._spans.note(began_seconds, time.perf_counter())
        if len(uids) != 1:
            self._spans.cut()
        elif span is not None and (drafts := self._drafts.get(uids[0])) is not None:
            drafts.note_plain(span)
        for one in responses:
            if one.finish_reason is not None:
                self.forget(one.uid)
        return responses

    def forget(self, uid: int) -> None:
        """Let go of a row."""
        self._drafts.pop(uid, None)
