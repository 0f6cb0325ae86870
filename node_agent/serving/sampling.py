"""What one row samples with: request, then Model, then the model's own files, then OpenAI.

Pure.
"""

import hashlib

from manifests.kinds.model import Sampling
from manifests.prompt.messages import Defaults
from node_agent.engine.messages import SamplingParams
from node_agent.serving.request import GenerationRequest


def plan_sampling(
    request: GenerationRequest, declared: Sampling, defaults: Defaults, row: int
) -> SamplingParams:
    """Return the settings of the row with this index; each row of a seeded request differs."""
    asked = request.sampling
    return SamplingParams(
        temperature=_first(asked.temperature, declared.temperature, defaults.temperature, 1.0),
        top_p=_first(asked.top_p, declared.top_p, defaults.top_p, 1.0),
        top_k=int(_first(asked.top_k, declared.top_k, defaults.top_k, 0)),
        min_p=_first(asked.min_p, declared.min_p, defaults.min_p, 0.0),
        repetition_penalty=_first(
            asked.repetition_penalty,
            declared.repetition_penalty,
            defaults.repetition_penalty,
            1.0,
        ),
        presence_penalty=asked.presence_penalty,
        frequency_penalty=asked.frequency_penalty,
        seed=_row_seed(asked.seed, row),
        logit_bias=asked.logit_bias,
        top_logprobs=request.top_logprobs,
    )


def _first(*values: float | None) -> float:
    return next(value for value in values if value is not None)


def _row_seed(seed: int | None, row: int) -> int | None:
    """The first row has the client's own seed, the others have seeds that follow from it."""
    if seed is None:
        return None
    if row == 0:
        return seed % 2**63
    digest = hashlib.sha256(f"{seed}:{row}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
