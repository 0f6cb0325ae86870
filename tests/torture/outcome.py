"""How one request ended, and whether that is an ending the product promises.

Pure values and judgements. Units: seconds, tokens, bytes.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from manifests.errors import Code, Retryable
from tests.torture.mix import Ask

MEMORY = Code.PREFILL_MEMORY_EXCEEDED.value
BUSY = frozenset({Code.QUEUE_FULL.value, Code.ENGINE_NOT_READY.value, Code.NO_READY_ENGINE.value})
# What a request to a model that is being taken away may hear besides.
GONE = frozenset({Code.MODEL_NOT_FOUND.value, Code.SHUTTING_DOWN.value, Code.CANCELLED.value})


class Kind(StrEnum):
    """The ending."""

    ANSWERED = "answered"
    REFUSED = "refused"
    CUT = "cut by an error event"
    LEFT = "left by the client"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Outcome:
    """`error` is the body's error object; `detail` says what was wrong with a broken answer."""

    ask: Ask
    kind: Kind
    status: int = 0
    error: dict[str, Any] = field(default_factory=dict)
    first_token_seconds: float | None = None
    seconds: float = 0.0
    detail: str = ""

    @property
    def code(self) -> str:
        """The error's code, or nothing."""
        return str(self.error.get("code") or "")

    @property
    def retryable(self) -> str:
        """Whether and where to try again, or nothing."""
        return str(self.error.get("retryable") or "")


def judge_error(outcome: Outcome, *, comes_and_goes: bool) -> str:
    """Return what is wrong with a refusal, or nothing when it is one the product promises."""
    code = outcome.code
    allowed = {MEMORY} | BUSY | (GONE if comes_and_goes else frozenset())
    if code not in allowed:
        return f"code {code!r} is no refusal: {outcome.error.get('message')}"
    if outcome.retryable not in {item.value for item in Retryable}:
        return f"{code} does not say whether to retry"
    if outcome.kind is Kind.CUT or code != MEMORY:
        return ""
    waits = outcome.retryable in {Retryable.LATER.value, Retryable.HERE.value}
    if outcome.status != (503 if waits else 413):
        return f"{code} with retryable={outcome.retryable} came as {outcome.status}"
    missing = [
        name
        for name in ("estimated_bytes", "limit_bytes", "binding")
        if outcome.error.get(name) is None
    ]
    return f"{code} lacks {', '.join(missing)}" if missing else ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a whole answer said of itself; a reason for each row."""

    finish_reasons: tuple[str | None, ...]
    prompt_tokens: int | None
    completion_tokens: int | None
    done: bool = True


def judge_answer(ask: Ask, answer: Answer) -> str:
    """Return what a 200 lacks, or nothing when it is the whole answer."""
    if not answer.done:
        return "the stream ended without [DONE]"
    if answer.finish_reasons != ("length",) * ask.rows:
        return f"rows finished as {answer.finish_reasons} although the end token is ignored"
    if answer.completion_tokens != ask.rows * ask.max_tokens:
        return f"{answer.completion_tokens} of {ask.rows} x {ask.max_tokens} tokens came"
    if not ask.chat and answer.prompt_tokens != ask.rows * ask.prompt_tokens:
        return f"{ask.rows} x {ask.prompt_tokens} tokens were sent, {answer.prompt_tokens} counted"
    return ""
