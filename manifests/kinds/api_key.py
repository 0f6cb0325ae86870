"""The `ApiKey` kind: a client of the gateway, what it may use and how much of it.

Only a hash of the secret is ever stored. Secrets are long and random, so a plain SHA-256 is right:
there is nothing to guess that a slow hash would make dearer, and the gateway needs the hash of
every request's key at once to look it up.
"""

import fnmatch
import hashlib
import hmac
import re
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from manifests.kinds.meta import Condition, Declared, FleetObject, NonNegative, Positive, Reported
from manifests.times import parse_time

KEY_START = "mlxf-"
PREFIX_CHARS = 8
LOWEST_PRIORITY, HIGHEST_PRIORITY = -1000, 1000
_HASH = re.compile(r"[0-9a-f]{64}", re.ASCII)


class Period(StrEnum):
    """How often a budget begins anew, in UTC: at midnight, on Monday, on the first."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"


class CacheIsolation(StrEnum):
    """With whom the cached prefixes of a key's requests are shared."""

    SHARED = "shared"
    TENANT = "tenant"


def hash_secret(secret: str) -> str:
    """Return the form in which a secret is stored: its SHA-256 in hex."""
    return hashlib.sha256(secret.encode()).hexdigest()


def same_hash(first: str, second: str) -> bool:
    """Whether two hashes are equal, in time that tells nothing of where they differ."""
    return hmac.compare_digest(first.encode(), second.encode())


def _check_hash(text: str) -> str:
    if not _HASH.fullmatch(text):
        raise ValueError(
            "must be a SHA-256 in 64 lower-case hex digits; `mlxctl create key NAME` makes a "
            "secret and stores its hash"
        )
    return text


def _check_time(text: str) -> str:
    if parse_time(text) is None or "T" not in text:
        raise ValueError('must be an RFC 3339 time; write it as "2030-01-31T00:00:00Z"')
    return text


def _check_pattern(text: str) -> str:
    if not text:
        raise ValueError("must not be empty; write a name, or * for every model")
    return text


Hash = Annotated[str, AfterValidator(_check_hash)]
Time = Annotated[str, AfterValidator(_check_time)]
NamePattern = Annotated[str, AfterValidator(_check_pattern)]


class Limits(Declared):
    """How fast a key may be used, by each gateway; None does not limit."""

    requests_per_minute: Positive | None = Field(
        default=None, description="requests taken within any 60 s"
    )
    tokens_per_minute: Positive | None = Field(
        default=None, description="prompt and output tokens of requests taken within any 60 s"
    )
    concurrent_requests: Positive | None = Field(
        default=None, description="requests served at the same time"
    )


class Budget(Declared):
    """How much a key may use in all until the period begins anew."""

    tokens: Positive = Field(description="prompt and output tokens, cached ones included")
    period: Period = Period.MONTH


class ApiKeySpec(Declared):
    """What the user declares about one client."""

    hash: Hash = Field(description="SHA-256 of the secret in hex; the secret is stored nowhere")
    prefix: Annotated[str, Field(max_length=PREFIX_CHARS)] = Field(
        default="", description="the secret's first characters, for people"
    )
    models: list[NamePattern] = Field(
        default_factory=list,
        description="names of models and routes it may use, with * and ?; empty means all",
    )
    priority: Annotated[int, Field(ge=LOWEST_PRIORITY, le=HIGHEST_PRIORITY)] = Field(
        default=0, description="who is served first when the fleet is full; higher goes first"
    )
    limits: Limits = Field(default_factory=Limits)
    budget: Budget | None = None
    expires: Time | None = Field(default=None, description="refused from then on; None: never")
    disabled: bool = Field(default=False, description="refused until this is false again")
    cache_isolation: CacheIsolation | None = Field(
        default=None,
        description="shared: with all such keys; tenant: nobody; None: as the CacheBudget says",
    )

    def may_use(self, *names: str) -> bool:
        """Whether a pattern matches one of these names of the same model."""
        return not self.models or any(
            fnmatch.fnmatchcase(name, pattern) for pattern in self.models for name in names
        )


class KeyUsage(Reported):
    """What a key has used, as the gateways reported it; a few seconds late. Units: tokens.

    `budget_used` counts since `period_start`, the start of a `period`; the others count since the
    key was made.
    """

    requests: NonNegative = 0
    prompt_tokens: NonNegative = 0
    completion_tokens: NonNegative = 0
    last_used: str = ""
    budget_used: NonNegative = 0
    period: str = ""
    period_start: str = ""


class ApiKeyStatus(Reported):
    """What became of one client."""

    observed_generation: int = 0
    usage: KeyUsage = Field(default_factory=KeyUsage)
    conditions: tuple[Condition, ...] = ()


class ApiKey(FleetObject):
    """A client of the gateway, known by the hash of its secret."""

    kind: Literal["ApiKey"] = "ApiKey"
    spec: ApiKeySpec
    status: ApiKeyStatus = Field(default_factory=ApiKeyStatus)
