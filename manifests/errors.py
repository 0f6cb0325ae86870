"""Errors that people and programs can act on.

An expected refusal is a `Refusal` value; an exception is a fault. Each carries a stable code,
whether and where to try again, and a hint. They become HTTP once, at the edge.
"""

from dataclasses import dataclass
from enum import StrEnum


class Retryable(StrEnum):
    """Whether the same request can succeed: never, here, on another node, or later."""

    NO = "no"
    HERE = "here"
    ELSEWHERE = "elsewhere"
    LATER = "later"


class Code(StrEnum):
    """Stable machine-readable reasons, used as `error.code` on the OpenAI routes."""

    INVALID_JSON = "invalid_json"
    INVALID_VALUE = "invalid_value"
    UNSUPPORTED_VALUE = "unsupported_value"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    PREFILL_MEMORY_EXCEEDED = "prefill_memory_exceeded"
    INVALID_API_KEY = "invalid_api_key"
    MODEL_NOT_ALLOWED = "model_not_allowed"
    RATE_LIMIT_EXCEEDED = "rate_limit_exceeded"
    INSUFFICIENT_QUOTA = "insufficient_quota"
    MODEL_NOT_FOUND = "model_not_found"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    REQUEST_TOO_LARGE = "request_too_large"
    QUEUE_FULL = "queue_full"
    ENGINE_NOT_READY = "engine_not_ready"
    NO_READY_ENGINE = "no_ready_engine"
    ENGINE_DIED = "engine_died"
    ENGINE_STUCK = "engine_stuck"
    UPSTREAM_LOST = "upstream_lost"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    CANCELLED = "cancelled"
    SHUTTING_DOWN = "shutting_down"
    INTERNAL = "internal_error"


HTTP_STATUS: dict[Code, int] = {
    Code.INVALID_JSON: 400,
    Code.INVALID_VALUE: 400,
    Code.UNSUPPORTED_VALUE: 400,
    Code.CONTEXT_LENGTH_EXCEEDED: 400,
    Code.PREFILL_MEMORY_EXCEEDED: 413,
    Code.INVALID_API_KEY: 401,
    Code.MODEL_NOT_ALLOWED: 403,
    Code.RATE_LIMIT_EXCEEDED: 429,
    Code.INSUFFICIENT_QUOTA: 429,
    Code.MODEL_NOT_FOUND: 404,
    Code.NOT_FOUND: 404,
    Code.METHOD_NOT_ALLOWED: 405,
    Code.REQUEST_TOO_LARGE: 413,
    Code.QUEUE_FULL: 503,
    Code.ENGINE_NOT_READY: 503,
    Code.NO_READY_ENGINE: 503,
    Code.ENGINE_DIED: 503,
    Code.ENGINE_STUCK: 503,
    Code.UPSTREAM_LOST: 502,
    Code.DEADLINE_EXCEEDED: 504,
    Code.CANCELLED: 499,
    Code.SHUTTING_DOWN: 503,
    Code.INTERNAL: 500,
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not served, with what would help.

    Units: `estimated_bytes`, `limit_bytes` in bytes; `retry_after_seconds` in seconds.
    `retryable=LATER` turns a 413 into a 503: the prompt fits once memory is free.
    `fitting_tokens` is the longest prompt that would be taken with the same max_tokens;
    `node` names whose limit it is, where more than one was asked.
    """

    code: Code
    message: str
    retryable: Retryable = Retryable.NO
    hint: str = ""
    param: str | None = None
    estimated_bytes: int | None = None
    limit_bytes: int | None = None
    binding: str | None = None
    retry_after_seconds: int | None = None
    fitting_tokens: int | None = None
    node: str | None = None

    @property
    def http_status(self) -> int:
        """The status on OpenAI routes."""
        waits = self.retryable in {Retryable.LATER, Retryable.HERE}
        if self.code is Code.PREFILL_MEMORY_EXCEEDED and waits:
            return 503
        return HTTP_STATUS[self.code]


class FleetError(Exception):
    """A fault with a refusal to show for it."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class RequestError(FleetError):
    """The caller's request cannot be served as it stands."""


class EngineError(FleetError):
    """An engine failed or left while a request was in its hands."""
