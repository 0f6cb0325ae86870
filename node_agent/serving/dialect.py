"""OpenAI request bodies as `GenerationRequest`s.

Pure. Every documented field has its effect or is refused with `param`; docs/openai.md lists
them. Decisions:
- `max_completion_tokens` is the newer name of `max_tokens`: either alone works, equal values
  work, different values are refused.
- `stop`: at most four strings; an empty string is ignored.
- `priority` is as vLLM has it: a lower number goes first. Without one, `service_tier` "priority"
  goes before and "flex" behind the rest; every other tier is what is served anyway.
- `tools` are shown to the model unless `tool_choice` is "none"; calls stay in the text.
- Fields that other servers know and that would change the answer are refused, and so is a
  near-miss of a known name. Any other unknown field is ignored and logged once.
"""

import difflib
from typing import Any

from manifests.prompt.body import (
    CHAT_FIELDS,
    ChatPrompt,
    TextPrompts,
    parse_chat_prompt,
    parse_text_prompts,
)
from manifests.prompt.fields import Fields, refuse, unsupported
from node_agent.serving.request import Endpoint, GenerationRequest, SamplingRequest

MAX_ROWS = 128
MAX_STOPS = 4
MAX_TOP_LOGPROBS = 20
MAX_LEGACY_LOGPROBS = 5
MAX_TOKENS = 2**31 - 1
MAX_SEED = 2**63 - 1
MAX_PRIORITY = 1000
MIN_DEADLINE_SECONDS = 0.1
MAX_DEADLINE_SECONDS = 86_400.0
TIER_PRIORITIES = {"priority": 1, "flex": -1}

_SHARED = frozenset(
    {
        "model", "stream", "stream_options", "n", "max_tokens", "stop", "temperature", "top_p",
        "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty",
        "logit_bias", "logprobs", "ignore_eos", "priority", "service_tier", "deadline_seconds",
        "cache_salt",
    }
)  # fmt: skip
_CHAT = _SHARED.union(
    CHAT_FIELDS, ("max_completion_tokens", "top_logprobs", "response_format", "modalities")
)
_COMPLETIONS = _SHARED | {"prompt", "echo", "best_of", "suffix"}
# Notes for the provider's own bookkeeping: accepted, nothing is stored, the answer is the same.
_BOOKKEEPING = frozenset(
    {
        "user", "metadata", "store", "safety_identifier", "prompt_cache_key",
        "prompt_cache_retention",
    }
)  # fmt: skip
# They would change the answer and cannot be honoured; null counts as absent.
_REFUSED = frozenset(
    {
        "functions", "function_call", "audio", "prediction", "web_search_options", "verbosity",
        "guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs",
        "grammar", "json_schema", "min_tokens", "stop_token_ids", "bad_words", "length_penalty",
        "use_beam_search", "prompt_logprobs", "add_generation_prompt", "continue_final_message",
        "chat_template", "documents", "prompt_embeds", "truncate_prompt_tokens", "typical_p",
        "mirostat", "draft_model", "adapters",
    }
)  # fmt: skip


def parse_chat(body: dict[str, Any]) -> GenerationRequest:
    """Return a chat request. Raises RequestError."""
    unknown = _check_names(body, _CHAT)
    fields = Fields(body)
    _check_text_only(fields)
    top = fields.integer("top_logprobs", 0, MAX_TOP_LOGPROBS)
    wanted = fields.boolean("logprobs")
    if top is not None and not wanted:
        refuse("top_logprobs", "top_logprobs needs logprobs to be true.")
    prompt = parse_chat_prompt(body)
    newer = fields.integer("max_completion_tokens", 1, MAX_TOKENS)
    older = fields.integer("max_tokens", 1, MAX_TOKENS)
    if newer is not None and older is not None and newer != older:
        refuse("max_completion_tokens", "max_completion_tokens and max_tokens differ; send one.")
    return _build(
        fields,
        Endpoint.CHAT,
        prompt,
        max_tokens=newer if newer is not None else older,
        top_logprobs=(top or 0) if wanted else None,
        unknown_fields=unknown,
    )


def parse_completions(body: dict[str, Any]) -> GenerationRequest:
    """Return a legacy completions request. Raises RequestError."""
    unknown = _check_names(body, _COMPLETIONS)
    fields = Fields(body)
    if fields.boolean("echo"):
        unsupported("echo")
    if fields.get("suffix") not in (None, ""):
        unsupported("suffix")
    best_of = fields.integer("best_of", 1, MAX_ROWS)
    if best_of is not None and best_of != (fields.integer("n", 1, MAX_ROWS) or 1):
        unsupported("best_of", hint="Leave it out, or make it equal to n.")
    return _build(
        fields,
        Endpoint.COMPLETIONS,
        parse_text_prompts(body.get("prompt")),
        max_tokens=fields.integer("max_tokens", 1, MAX_TOKENS) or 16,
        top_logprobs=fields.integer("logprobs", 0, MAX_LEGACY_LOGPROBS),
        unknown_fields=unknown,
    )


def _build(
    fields: Fields, endpoint: Endpoint, prompt: ChatPrompt | TextPrompts, **known: Any
) -> GenerationRequest:
    model = fields.string("model")
    if not model:
        refuse("model", "model must be the name of a served model.", "See GET /v1/models.")
    stream = fields.boolean("stream") or False
    request = GenerationRequest(
        endpoint=endpoint,
        model=model,
        prompt=prompt,
        choices=fields.integer("n", 1, MAX_ROWS) or 1,
        stop=_parse_stop(fields.get("stop")),
        ignore_eos=fields.boolean("ignore_eos") or False,
        stream=stream,
        include_usage=_parse_include_usage(fields, stream),
        priority=_parse_priority(fields),
        deadline_seconds=fields.number(
            "deadline_seconds", MIN_DEADLINE_SECONDS, MAX_DEADLINE_SECONDS
        ),
        cache_salt=fields.string("cache_salt") or "",
        sampling=_parse_sampling(fields),
        **known,
    )
    if request.rows > MAX_ROWS:
        refuse("n", f"The prompts times n must not be more than {MAX_ROWS}.")
    return request


def _check_names(body: dict[str, Any], known: frozenset[str]) -> tuple[str, ...]:
    unknown = []
    for name, value in body.items():
        if name in known or name in _BOOKKEEPING or value is None:
            continue
        if name in _REFUSED:
            unsupported(name)
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.86)
        if near:
            refuse(
                name[:64],
                "The request has an unknown field that is almost a known one.",
                f"Did you mean {near[0]}?",
            )
        unknown.append(name)
    return tuple(unknown)


def _check_text_only(fields: Fields) -> None:
    form = fields.mapping("response_format")
    if form is not None and form.get("type") != "text":
        unsupported("response_format", hint='Only {"type": "text"} can be promised.')
    if fields.get("modalities") not in (None, ["text"]):
        unsupported("modalities", hint='Only ["text"] is served.')


def _parse_stop(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value
    if stops is None:
        return ()
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        refuse("stop", "stop must be a string or a list of strings.")
    if len(stops) > MAX_STOPS:
        refuse("stop", f"stop must not have more than {MAX_STOPS} strings.")
    return tuple(stop for stop in stops if stop)


def _parse_include_usage(fields: Fields, stream: bool) -> bool:
    options = fields.mapping("stream_options")
    if options is None:
        return False
    if not stream:
        refuse("stream_options", "stream_options needs stream to be true.")
    return Fields(options, "stream_options").boolean("include_usage") or False


def _parse_priority(fields: Fields) -> int:
    """Return the engine's priority, where a higher one goes first."""
    lower_first = fields.integer("priority", -MAX_PRIORITY, MAX_PRIORITY)
    tier = fields.string("service_tier")
    if lower_first is not None:
        return -lower_first
    return TIER_PRIORITIES.get(tier or "", 0)


def _parse_sampling(fields: Fields) -> SamplingRequest:
    top_p = fields.number("top_p", 0, 1)
    if top_p == 0:
        refuse("top_p", "top_p must be more than 0.", "Use temperature 0 for the likeliest token.")
    repetition = fields.number("repetition_penalty", 0, 10)
    if repetition == 0:
        refuse("repetition_penalty", "repetition_penalty must be more than 0.")
    return SamplingRequest(
        temperature=fields.number("temperature", 0, 2),
        top_p=top_p,
        top_k=_parse_top_k(fields),
        min_p=fields.number("min_p", 0, 1),
        repetition_penalty=repetition,
        presence_penalty=fields.number("presence_penalty", -2, 2) or 0.0,
        frequency_penalty=fields.number("frequency_penalty", -2, 2) or 0.0,
        seed=fields.integer("seed", -MAX_SEED - 1, MAX_SEED),
        logit_bias=_parse_logit_bias(fields.mapping("logit_bias") or {}),
    )


def _parse_top_k(fields: Fields) -> int | None:
    """-1 and 0 both mean every token, as other servers have it."""
    top_k = fields.integer("top_k", -1, MAX_TOKENS)
    return 0 if top_k == -1 else top_k


def _parse_logit_bias(values: dict[str, Any]) -> dict[int, float]:
    biases = {}
    for key in values:
        if not key.isascii() or not key.isdigit():
            refuse("logit_bias", "logit_bias must map token ids to numbers from -100 to 100.")
        biases[int(key)] = Fields(values, "logit_bias").number(key, -100, 100) or 0.0
    return biases
