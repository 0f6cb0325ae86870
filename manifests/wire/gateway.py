"""What a gateway tells an agent beside a request, and what the agent tells it beside the answer.

Pure. The body of a request passes the gateway byte for byte, so what the gateway decides goes into
headers; it takes off those that clients send. What a stream has cost so far stands in a comment
of its events, which clients of server-sent events skip.
"""

MODEL_HEADER = "x-mlxfleet-model"
"""The Model to answer with, whatever public name the body's `model` is."""
ISOLATION_HEADER = "x-mlxfleet-isolation"
"""`tenant`: share cached prefixes within the tenant only, whatever the CacheBudget says."""
USAGE_HEADER = "x-mlxfleet-usage"
"""Say what a stream costs: `each` with each of its events, `end` with the last."""
USAGE_EACH, USAGE_END = "each", "end"

_USAGE_MARK = b": usage "


def usage_comment(prompt_tokens: int, completion_tokens: int) -> bytes:
    """Return the line that goes before an event's data."""
    return _USAGE_MARK + f"{prompt_tokens} {completion_tokens}\n".encode("ascii")


def parse_usage_comment(line: bytes) -> tuple[int, int] | None:
    """Return prompt and completion tokens of such a line without its end; None for another."""
    if not line.startswith(_USAGE_MARK):
        return None
    prompt, _, completion = line[len(_USAGE_MARK) :].partition(b" ")
    if not prompt.isdigit() or not completion.isdigit() or len(line) > 64:
        return None
    return int(prompt), int(completion)
