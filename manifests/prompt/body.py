"""The parts of an OpenAI body that become the prompt, checked and in the template's form.

Pure. The agent's dialect and the tokenizer process read them by the same functions, so that a
gateway counts the very ids that the node will compute. No client text comes into an error.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from manifests.prompt.conversation import parse_messages
from manifests.prompt.fields import Fields, refuse, unsupported

CHAT_FIELDS = (
    "messages",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "chat_template_kwargs",
    "reasoning_effort",
)
"""All that a chat's prompt is made of, beside the Model's own template variables."""

_TEMPLATE_RESERVED = frozenset(
    {
        "conversation", "conversations", "messages", "tools", "documents", "chat_template",
        "add_generation_prompt", "continue_final_message", "tokenize", "padding", "truncation",
        "max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask",
        "tokenizer_kwargs", "sanitize_control_tokens",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation as the template wants it: plain strings, arguments as mappings."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    variables: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TextPrompts:
    """Plain prompts, each either text or token ids; exactly one list is filled."""

    texts: list[str] = field(default_factory=list)
    token_ids: list[list[int]] = field(default_factory=list)

    @property
    def count(self) -> int:
        """How many prompts there are."""
        return len(self.texts) + len(self.token_ids)


def parse_chat_prompt(body: dict[str, Any]) -> ChatPrompt:
    """Return the prompt of a chat completion. Raises RequestError."""
    fields = Fields(body)
    return ChatPrompt(
        messages=parse_messages(body.get("messages")),
        tools=_parse_tools(fields),
        variables=_parse_variables(fields),
    )


def parse_text_prompts(value: Any) -> TextPrompts:
    """Return the prompts of a text completion. Raises RequestError."""
    if isinstance(value, str):
        return TextPrompts(texts=[value])
    items: list[Any] = value if isinstance(value, list) and value else [None]
    if all(isinstance(item, str) for item in items):
        return TextPrompts(texts=items)
    if _is_ids(items):
        return TextPrompts(token_ids=[items])
    if not all(isinstance(item, list) and item and _is_ids(item) for item in items):
        refuse("prompt", "prompt must be text, token ids, or a list of either, and not empty.")
    return TextPrompts(token_ids=items)


def merge_variables(declared: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the template's variables: the request's before the Model's."""
    return {**declared, **asked}


def fill_empty(ids: list[int], bos_token_id: int | None) -> list[int]:
    """Return a text's ids; an empty text becomes the start token alone, where there is one."""
    return ids or ([] if bos_token_id is None else [bos_token_id])


def _parse_tools(fields: Fields) -> list[dict[str, Any]] | None:
    tools = fields.get("tools")
    if tools is not None and not (
        isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)
    ):
        refuse("tools", "tools must be a list of objects.")
    for place, tool in enumerate(tools or []):
        function = tool.get("function")
        if tool.get("type") != "function":
            unsupported(f"tools[{place}].type", hint="Only function tools are known.")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            refuse(f"tools[{place}].function", "A function tool needs a function with a name.")
    choice = fields.get("tool_choice")
    if choice not in (None, "auto", "none"):
        unsupported("tool_choice", hint='Only "auto" and "none" can be promised.')
    if fields.boolean("parallel_tool_calls") is False:
        unsupported("parallel_tool_calls", hint="The number of calls cannot be limited.")
    return None if choice == "none" or not tools else tools


def _parse_variables(fields: Fields) -> dict[str, Any]:
    variables = dict(fields.mapping("chat_template_kwargs") or {})
    reserved = sorted(_TEMPLATE_RESERVED & variables.keys())
    if reserved:
        unsupported(f"chat_template_kwargs.{reserved[0]}", hint="The server sets it itself.")
    effort = fields.string("reasoning_effort")
    if effort is not None:
        variables.setdefault("reasoning_effort", effort)
    return variables


def _is_ids(value: list[Any]) -> bool:
    # `type is int` and not isinstance: true and false are no token ids.
    return all(type(item) is int and 0 <= item < 2**31 for item in value)
