"""Whether a prompt fits the context, and how many tokens may follow.

Pure. One rule for every model and route: a prompt that leaves no room for one token is refused
with both numbers; `max_tokens` is a cap, so where prompt plus cap pass the context the answer
ends at the context with "length". Nothing is ever cut off a prompt.
"""

from collections.abc import Sequence

from manifests.errors import Code, Refusal
from manifests.kinds.model import Context, Sampling

DEFAULT_MAX_TOKENS = 4096
"""Output tokens when neither the request nor the Model says; every one is reserved for."""


def context_limit_tokens(declared: Context, own_tokens: int) -> int:
    """Return the tokens one request may hold: the declared limit within the model's own."""
    known = [limit for limit in (declared.max_tokens, own_tokens) if limit]
    return min(known) if known else 2**31 - 1


def plan_output_tokens(
    prompt_tokens: Sequence[int], asked: int | None, sampling: Sampling, limit_tokens: int
) -> tuple[int, ...] | Refusal:
    """Return each prompt's output cap, or the refusal of a prompt that is too long."""
    if max(prompt_tokens) >= limit_tokens:
        return refuse_length(prompt_tokens, limit_tokens)
    cap = asked or sampling.max_tokens or DEFAULT_MAX_TOKENS
    return tuple(min(cap, limit_tokens - size) for size in prompt_tokens)


def refuse_length(prompt_tokens: Sequence[int], limit_tokens: int) -> Refusal:
    """Return the refusal of prompts of which one is too long."""
    return Refusal(
        Code.CONTEXT_LENGTH_EXCEEDED,
        f"This model's maximum context length is {limit_tokens} tokens, prompt and answer "
        f"together. Your prompt has {max(prompt_tokens)} tokens.",
        hint="Shorten the prompt.",
    )
