"""OpenAI chat messages as the model's template wants them.

Pure. Content becomes one string, `developer` becomes `system`, the arguments of tool calls
become mappings, and the answers of tools follow the order of their calls.
"""

import json
from typing import Any

from manifests.prompt.fields import refuse, unsupported

_PLAIN_ROLES = {"system": "system", "developer": "system", "user": "user"}


def parse_messages(value: Any) -> list[dict[str, Any]]:
    """Return the messages for the template. Raises RequestError naming the place."""
    if not isinstance(value, list) or not value:
        refuse("messages", "messages must be a list with at least one message.")
    parsed: list[dict[str, Any]] = []
    calls: dict[str, tuple[int, str]] = {}
    for place, message in enumerate(value):
        where = f"messages[{place}]"
        if not isinstance(message, dict):
            refuse(where, f"{where} must be an object.")
        role = message.get("role")
        if isinstance(role, str) and role in _PLAIN_ROLES:
            parsed.append(_plain_message(message, _PLAIN_ROLES[role], where))
        elif role == "assistant":
            parsed.append(_assistant_message(message, where, calls))
        elif role == "tool":
            parsed.append(_tool_message(message, where, calls))
        else:
            refuse(
                f"{where}.role",
                f"{where}.role must be system, developer, user, assistant or tool.",
            )
    return _in_call_order(parsed, calls)


def _plain_message(message: dict[str, Any], role: str, where: str) -> dict[str, Any]:
    content = _join_content(message.get("content"), f"{where}.content")
    if content is None:
        refuse(f"{where}.content", f"{where}.content must be a string or a list of text parts.")
    return {"role": role, "content": content, **_name_of(message, where)}


def _assistant_message(
    message: dict[str, Any], where: str, calls: dict[str, tuple[int, str]]
) -> dict[str, Any]:
    for legacy in ("function_call", "audio"):
        if message.get(legacy) is not None:
            unsupported(f"{where}.{legacy}")
    content = _join_content(message.get("content"), f"{where}.content")
    if content is None:
        content = _join_content(message.get("refusal"), f"{where}.refusal")
    tool_calls = _parse_tool_calls(message.get("tool_calls"), f"{where}.tool_calls", calls)
    reasoning = _reasoning_of(message, where)
    if content is None and not tool_calls and reasoning is None:
        refuse(f"{where}.content", f"{where} needs content or tool_calls.")
    parsed: dict[str, Any] = {
        "role": "assistant",
        "content": content or "",
        **_name_of(message, where),
    }
    if reasoning is not None:
        parsed["reasoning_content"] = reasoning
    if tool_calls:
        parsed["tool_calls"] = tool_calls
    return parsed


def _reasoning_of(message: dict[str, Any], where: str) -> str | None:
    """Return what an earlier answer thought; some servers call it `reasoning`."""
    for name in ("reasoning_content", "reasoning"):
        reasoning = message.get(name)
        if isinstance(reasoning, str):
            return reasoning
        if reasoning is not None:
            refuse(f"{where}.{name}", f"{where}.{name} must be a string.")
    return None


def _tool_message(
    message: dict[str, Any], where: str, calls: dict[str, tuple[int, str]]
) -> dict[str, Any]:
    call_id = message.get("tool_call_id")
    if not isinstance(call_id, str) or call_id not in calls:
        refuse(
            f"{where}.tool_call_id",
            f"{where}.tool_call_id must be the id of a tool call earlier in the conversation.",
        )
    content = _join_content(message.get("content"), f"{where}.content")
    if content is None:
        refuse(f"{where}.content", f"{where}.content must be a string or a list of text parts.")
    return {
        "role": "tool",
        "content": content,
        "tool_call_id": call_id,
        "name": calls[call_id][1],
    }


def _join_content(content: Any, where: str) -> str | None:
    """Return the text of a content field; parts are joined as they are, nothing between."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        refuse(where, f"{where} must be a string or a list of text parts.")
    texts = []
    for place, part in enumerate(content):
        at = f"{where}[{place}]"
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in {"text", "refusal"}:
            named = f" {kind[:40]!r}" if isinstance(kind, str) else ""
            unsupported(f"{at}.type", hint=f"Content part type{named} is unknown here; send text.")
        text = part.get(kind)
        if not isinstance(text, str):
            refuse(f"{at}.{kind}", f"{at}.{kind} must be a string.")
        texts.append(text)
    return "".join(texts)


def _name_of(message: dict[str, Any], where: str) -> dict[str, str]:
    name = message.get("name")
    if name is None:
        return {}
    if not isinstance(name, str):
        refuse(f"{where}.name", f"{where}.name must be a string.")
    return {"name": name}


def _parse_tool_calls(
    value: Any, where: str, calls: dict[str, tuple[int, str]]
) -> list[dict[str, Any]]:
    """Return the calls with their arguments as mappings. Mutates: `calls` learns their ids."""
    if value is None:
        return []
    if not isinstance(value, list):
        refuse(where, f"{where} must be a list.")
    parsed = []
    for place, call in enumerate(value):
        at = f"{where}[{place}]"
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            refuse(f"{at}.function", f"{at}.function must be an object with a name.")
        call_id = call.get("id")
        if not isinstance(call_id, str) or not call_id:
            refuse(f"{at}.id", f"{at}.id must be a string.")
        calls[call_id] = (len(calls), function["name"])
        arguments = _parse_arguments(function.get("arguments"), f"{at}.function.arguments")
        parsed.append(
            {
                "id": call_id,
                "type": "function",
                "function": {"name": function["name"], "arguments": arguments},
            }
        )
    return parsed


def _parse_arguments(value: Any, where: str) -> dict[str, Any]:
    if value is None or value == "":
        return {}
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            refuse(where, f"{where} must be a JSON object written as a string.")
    if value is None:
        return {}
    if not isinstance(value, dict):
        refuse(where, f"{where} must be a JSON object written as a string.")
    return value


def _in_call_order(
    messages: list[dict[str, Any]], calls: dict[str, tuple[int, str]]
) -> list[dict[str, Any]]:
    """Sort each run of tool answers by their calls: many templates pair them by place."""
    ordered: list[dict[str, Any]] = []
    run: list[dict[str, Any]] = []
    for message in [*messages, {"role": ""}]:
        if message["role"] == "tool":
            run.append(message)
            continue
        ordered.extend(sorted(run, key=lambda item: calls[item["tool_call_id"]][0]))
        run = []
        ordered.append(message)
    return ordered[:-1]
