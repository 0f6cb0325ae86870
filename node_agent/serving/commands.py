"""What an engine gets for each row of a request. Pure; called by `completion.py`."""

from collections.abc import Sequence
from dataclasses import dataclass

from node_agent.engine.messages import Generate
from node_agent.pool.base import Lease
from node_agent.serving.cache_keys import plan_extra_keys
from node_agent.serving.continuing import said_ids
from node_agent.serving.request import GenerationRequest
from node_agent.serving.sampling import plan_sampling
from node_agent.text.models import TextModel


@dataclass(frozen=True, slots=True)
class Share:
    """One row of a request: its place, and each row's cap for its whole answer."""

    index: int
    base: str
    prompts: Sequence[list[int]]
    caps: Sequence[int]


def plan_command(
    request: GenerationRequest, lease: Lease, text: TextModel, share: Share
) -> Generate:
    """Return what the engine gets for one row: what it has said elsewhere is prompt."""
    said = said_ids(request, share.index)
    spec, defaults = lease.view.want.spec, text.ready.defaults
    return Generate(
        request_id=f"{share.base}-{share.index}",
        prompt=[*share.prompts[share.index // request.choices], *said],
        max_tokens=share.caps[share.index] - len(said),
        stop_token_ids=defaults.eos_token_ids,
        ignore_eos=request.ignore_eos,
        sampling=plan_sampling(request, spec.sampling, defaults, share.index),
        priority=request.priority,
        extra_keys=plan_extra_keys(request, isolated=lease.view.cache.terms.isolated),
        said_tokens=len(said),
    )
