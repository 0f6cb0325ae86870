from typing import Any

import pytest

from manifests.errors import Code, Refusal, RequestError
from manifests.prompt.body import ChatPrompt, TextPrompts
from node_agent.serving.dialect import parse_chat, parse_completions
from node_agent.serving.request import GenerationRequest

TOOL = {"type": "function", "function": {"name": "look", "parameters": {}}}


def chat(**fields: Any) -> GenerationRequest:
    return parse_chat({"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields})


def complete(**fields: Any) -> GenerationRequest:
    return parse_completions({"model": "m", "prompt": "hi", **fields})


def refusal_of(parse: Any, **fields: Any) -> Refusal:
    with pytest.raises(RequestError) as refused:
        parse(**fields)
    assert refused.value.refusal.http_status == 400
    return refused.value.refusal


def chat_prompt(request: GenerationRequest) -> ChatPrompt:
    assert isinstance(request.prompt, ChatPrompt)
    return request.prompt


@pytest.mark.parametrize(
    ("fields", "cap"),
    [
        ({"max_completion_tokens": 7}, 7),
        ({"max_tokens": 7}, 7),
        ({"max_completion_tokens": 7, "max_tokens": 7}, 7),
        ({"max_completion_tokens": 7, "max_tokens": None}, 7),
        ({"max_completion_tokens": None, "max_tokens": None}, None),
    ],
)
def test_either_name_of_the_token_cap_works(fields: dict[str, Any], cap: int | None) -> None:
    """B01: null is the server's default."""
    assert chat(**fields).max_tokens == cap


def test_two_different_caps_are_refused() -> None:
    """B01: never unlimited."""
    refusal = refusal_of(chat, max_completion_tokens=7, max_tokens=50)
    assert refusal.param == "max_completion_tokens"


@pytest.mark.parametrize("name", ["max_completion_tokens", "max_tokens"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "7", True])
def test_a_cap_that_is_no_positive_number_is_refused(name: str, value: Any) -> None:
    """B01."""
    assert refusal_of(chat, **{name: value}).param == name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 0),
        ("n", 129),
        ("temperature", 2.1),
        ("temperature", "hot"),
        ("top_p", 0),
        ("top_p", float("nan")),
        ("top_k", -2),
        ("min_p", 1.5),
        ("seed", 1.5),
        ("presence_penalty", 3),
        ("frequency_penalty", -3),
        ("repetition_penalty", 0),
        ("logit_bias", {"word": 1}),
        ("logit_bias", [1]),
        ("logprobs", 3),
        ("top_logprobs", 3),
        ("stop", ["a", "b", "c", "d", "e"]),
        ("stop", 5),
        ("stream", "yes"),
        ("stream_options", {"include_usage": True}),
        ("ignore_eos", 1),
        ("response_format", {"type": "json_object"}),
        ("response_format", {"type": "json_schema", "json_schema": {}}),
        ("response_format", "json"),
        ("tool_choice", "required"),
        ("tool_choice", {"type": "function", "function": {"name": "look"}}),
        ("parallel_tool_calls", False),
        ("tools", "look"),
        ("functions", [{}]),
        ("modalities", ["audio"]),
        ("guided_json", {}),
        ("chat_template_kwargs", []),
        ("min_tokens", 5),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(name: str, value: Any) -> None:
    """B02: a documented field has its effect or a 400 whose param names it."""
    assert refusal_of(chat, **{name: value}).param == name


def test_structured_output_is_refused_as_unsupported() -> None:
    """B02."""
    refusal = refusal_of(chat, response_format={"type": "json_object"})
    assert refusal.code is Code.UNSUPPORTED_VALUE


@pytest.mark.parametrize(
    ("name", "value"), [("echo", True), ("suffix", "x"), ("best_of", 2), ("logprobs", 6)]
)
def test_legacy_fields_that_cannot_be_honoured_are_refused(name: str, value: Any) -> None:
    """B02: echo and best_of are not swallowed."""
    assert refusal_of(complete, **{name: value}).param == name


def test_trivial_values_of_legacy_fields_are_accepted() -> None:
    """B02."""
    assert complete(echo=False, suffix="", best_of=3, n=3).choices == 3


def test_sampling_fields_reach_the_request() -> None:
    """B02."""
    sent = {
        "temperature": 0,
        "top_p": 0.5,
        "top_k": 40,
        "min_p": 0.1,
        "seed": -3,
        "presence_penalty": 1,
        "frequency_penalty": -1,
        "repetition_penalty": 1.1,
        "logit_bias": {"5": -100},
    }
    sampling = chat(**sent).sampling
    read = {name: getattr(sampling, name) for name in sent}
    assert read == {**sent, "logit_bias": {5: -100.0}}


def test_tools_are_shown_unless_the_choice_is_none() -> None:
    """B02: `none` can then not return a call."""
    assert chat_prompt(chat(tools=[TOOL])).tools == [TOOL]
    assert chat_prompt(chat(tools=[TOOL], tool_choice="auto")).tools == [TOOL]
    assert chat_prompt(chat(tools=[TOOL], tool_choice="none")).tools is None
    assert chat_prompt(chat(tools=[])).tools is None


@pytest.mark.parametrize(
    ("stop", "expected"),
    [("a", ("a",)), (["a", "b"], ("a", "b")), ("", ()), ([""], ()), ([], ()), (None, ())],
)
def test_stop_takes_one_to_four_strings(stop: Any, expected: tuple[str, ...]) -> None:
    """B13: an empty string is ignored."""
    assert chat(stop=stop).stop == expected


def test_template_variables_pass_but_the_servers_own_do_not() -> None:
    request = chat(chat_template_kwargs={"enable_thinking": False}, reasoning_effort="low")
    expected = {"enable_thinking": False, "reasoning_effort": "low"}
    assert chat_prompt(request).variables == expected
    refusal = refusal_of(chat, chat_template_kwargs={"chat_template": "{{ x }}"})
    assert refusal.param == "chat_template_kwargs.chat_template"


def test_a_near_miss_is_refused_and_a_foreign_field_is_ignored() -> None:
    """B02: a typo is not a silent no-op."""
    refusal = refusal_of(chat, max_token=5)
    assert (refusal.param, refusal.hint) == ("max_token", "Did you mean max_tokens?")
    assert chat(x_trace="1", user="u", metadata={}, store=False).unknown_fields == ("x_trace",)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("hi", TextPrompts(texts=["hi"])),
        (["a", "b"], TextPrompts(texts=["a", "b"])),
        ([1, 2], TextPrompts(token_ids=[[1, 2]])),
        ([[1], [2, 3]], TextPrompts(token_ids=[[1], [2, 3]])),
    ],
)
def test_every_form_of_a_legacy_prompt_is_read(prompt: Any, expected: TextPrompts) -> None:
    """B05."""
    assert complete(prompt=prompt, n=2).prompt == expected
    assert complete(prompt=prompt, n=2).rows == 2 * expected.count


@pytest.mark.parametrize("prompt", [[], [[]], [True], [-1], [1, "a"], None, 5, {"a": 1}, [[1.5]]])
def test_other_forms_of_a_prompt_are_refused(prompt: Any) -> None:
    """B05: never a 500."""
    assert refusal_of(complete, prompt=prompt).param == "prompt"


@pytest.mark.parametrize("model", ["", None, 5, {"a": 1}])
def test_a_request_without_a_model_name_is_refused(model: Any) -> None:
    """B11."""
    assert refusal_of(chat, model=model).param == "model"


def test_usage_in_a_stream_is_only_for_those_who_ask() -> None:
    """B15."""
    assert not chat(stream=True).include_usage
    assert not chat(stream=True, stream_options={"include_usage": False}).include_usage
    assert chat(stream=True, stream_options={"include_usage": True}).include_usage


def test_no_refusal_repeats_what_the_client_wrote() -> None:
    """B06, B94: a secret in a bad field does not come back."""
    for name in ("temperature", "stop", "messages", "tools", "user_x", "seed", "prompt"):
        for parse in (parse_chat, parse_completions):
            with pytest.raises(RequestError) as refused:
                parse({"model": "m", name: {"SECRET": "SECRET"}})
            shown = refused.value.refusal
            assert "SECRET" not in f"{shown.message}{shown.hint}{shown.param}"


@pytest.mark.parametrize(
    ("fields", "priority"),
    [
        ({}, 0),
        ({"priority": 3}, -3),
        ({"service_tier": "priority"}, 1),
        ({"service_tier": "flex"}, -1),
        ({"service_tier": "auto"}, 0),
        ({"service_tier": "priority", "priority": 0}, 0),
    ],
)
def test_a_lower_number_goes_first_as_in_vllm(fields: dict[str, Any], priority: int) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}
    assert parse_chat(body).priority == priority
    assert parse_completions({"model": "m", "prompt": "x", **fields}).priority == priority


@pytest.mark.parametrize(
    ("name", "value"),
    [("priority", 1001), ("priority", 0.5), ("deadline_seconds", 0), ("service_tier", 3)],
)
def test_a_turn_or_time_that_makes_no_sense_is_refused(name: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        parse_completions({"model": "m", "prompt": "x", name: value})
    assert caught.value.refusal.param == name
