"""Rows decoded together by mlx-lm's BatchGenerator.

Owns the generator and the translation of its responses into plain values. Greedy and seeded
rows give the same tokens alone and in a batch, as far as the device's kernels do.
"""

import mlx.core as mx
from mlx import nn
from mlx_lm.generate import BatchGenerator, StopSequences

from node_agent.engine.logprobs import pick_logprobs
from node_agent.engine.messages import Generate, TokenLogprobs
from node_agent.engine.rows import PrefillStep, StepResult, TokenStep
from node_agent.engine.sampling import Samplers, processors_for
from node_agent.engine.scheduler import MAX_PREFILLING_ROWS

# A chunk is shared by the rows being fed; below this many tokens each, overhead dominates.
MIN_ROW_CHUNK_TOKENS = 16


def share_chunk(chunk_tokens: int, prefilling_rows: int) -> int:
    """Return how many prompt tokens each row feeds in one step. Pure."""
    shared = chunk_tokens // max(prefilling_rows, 1)
    return max(shared, min(chunk_tokens, MIN_ROW_CHUNK_TOKENS))


class BatchRunner:
    """Continuous batching over one model."""

    def __init__(self, model: nn.Module, chunk_tokens: int, max_running: int) -> None:
        self._generator = BatchGenerator(
            model,
            completion_batch_size=max_running,
            prefill_batch_size=MAX_PREFILLING_ROWS,
            prefill_step_size=chunk_tokens,
        )
        # The generator raised the wired limit to the device's maximum; with cache churn that
        # is tied to kernel panics in public reports, so it goes back to nothing wired.
        if mx.device_info().get("max_recommended_working_set_size") is not None:
            mx.set_wired_limit(0)
        self._chunk_tokens = chunk_tokens
        self._max_rows = max_running
        self._samplers = Samplers()
        self._no_stops = StopSequences()
        self._rows: dict[int, Generate] = {}
        self._fed_tokens: dict[int, int] = {}

    @property
    def max_rows(self) -> int:
        """How many rows are decoded together at most."""
        return self._max_rows

    @property
    def chunk_tokens(self) -> int:
        """The most prompt tokens one step feeds."""
        return self._chunk_tokens

    def insert(self, command: Generate) -> int:
        """Hand a row to the generator and return its uid."""
        stops = (
            self._no_stops
            if command.ignore_eos or not command.stop_token_ids
            else StopSequences([[token] for token in command.stop_token_ids])
        )
        (uid,) = self._generator.insert(
            [list(command.prompt)],
            max_tokens=[command.max_tokens],
            samplers=[self._samplers.sampler_for(command.sampling)],
            logits_processors=[processors_for(command.sampling, len(command.prompt))],
            stop_sequences=[stops],
        )
        self._rows[uid] = command
        self._fed_tokens[uid] = 0
        return int(uid)

    def remove(self, uid: int) -> None:
        """Drop a row between steps."""
        self._generator.remove([uid])
        del self._rows[uid]
        self._fed_tokens.pop(uid, None)

    def step(self) -> StepResult:
        """Decode one token of each running row and feed at most one prefill chunk."""
        if not self._fed_tokens:
            # Taking stats costs a tenth of a millisecond, so pure decode steps go without.
            _, token_responses = self._generator.next()
            return StepResult(tokens=self._read_tokens(token_responses))
        self._generator.prefill_step_size = share_chunk(self._chunk_tokens, len(self._fed_tokens))
        with self._generator.stats() as stats:
            prompt_responses, token_responses = self._generator.next()
        prefills = self._read_prefills(prompt_responses, stats.prompt_time)
        return StepResult(prefills=prefills, tokens=self._read_tokens(token_responses))

    def close(self) -> None:
        """Let the generator go. Mutates: MLX's wired limit, back to what it was."""
        self._generator.close()

    def _read_prefills(
        self, responses: list[BatchGenerator], prompt_seconds: float
    ) -> tuple[PrefillStep, ...]:
        fed: list[tuple[int, int, int, int]] = []
        for response in responses:
            uid, (done, total) = response.uid, response.progress
            fed.append((uid, done, total, done - self._fed_tokens[uid]))
            self._fed_tokens[uid] = done
            if done >= total:
                del self._fed_tokens[uid]
        # The last token of a prompt goes through the decode path and is no part of the chunk.
        chunk_total = sum(chunk for _, done, total, chunk in fed if done < total)
        return tuple(
            PrefillStep(
                uid=uid,
                done_tokens=done,
                total_tokens=total,
                chunk_tokens=chunk,
                seconds=prompt_seconds * chunk / chunk_total if done < total else 0.0,
            )
            for uid, done, total, chunk in fed
        )

    def _read_tokens(self, responses: list[BatchGenerator]) -> tuple[TokenStep, ...]:
        wanted = [
            (response.uid, response.logprobs, response.token, top)
            for response in responses
            if (top := self._rows[response.uid].sampling.top_logprobs) is not None
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
                del self._rows[step.uid]
        return steps
