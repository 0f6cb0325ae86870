"""Who asks, by the key that was sent, and what they may use; pure.

The secret itself goes no further than `find_secret`. Called by `door`.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from controller.gateway.http.asgi import RawHeader, find_header
from controller.gateway.http.peek import shown_name
from controller.gateway.sending.headers import text_of
from manifests.errors import Code, Refusal, Retryable
from manifests.kinds.api_key import ApiKey, CacheIsolation, hash_secret, same_hash
from manifests.times import parse_time
from manifests.wire.gateway import ISOLATION_HEADER
from manifests.wire.tenant import TENANT_HEADER, name_tenant

_BEARER = b"bearer "
_KEY_HEADERS = (b"x-api-key", b"api-key")
_PATTERNS_SHOWN = 10
_HOW = "Send it as `Authorization: Bearer KEY` or as `x-api-key: KEY`."


@dataclass(frozen=True, slots=True)
class Keyring:
    """The declared keys by the hash of their secret; `known` is false until they were seen once."""

    known: bool = False
    by_hash: Mapping[str, ApiKey] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request; without a key when the gateway is open to all."""

    key: ApiKey | None = None

    @property
    def name(self) -> str:
        """The key's name; empty without one."""
        return "" if self.key is None else str(self.key.metadata.name)

    @property
    def priority(self) -> int:
        """Who is served first; higher goes first."""
        return 0 if self.key is None else self.key.spec.priority

    def may_use(self, *names: str) -> bool:
        """Whether the caller may use a model that is known by these names."""
        return self.key is None or self.key.spec.may_use(*names)


NOBODY = Caller()


def plan_keyring(keys: Iterable[ApiKey]) -> Keyring:
    """Return the ring of keys that were seen; of two with one secret the first by name has it."""
    by_hash: dict[str, ApiKey] = {}
    for key in sorted(keys, key=lambda item: str(item.metadata.name)):
        if key.metadata.deletion_timestamp is None:
            by_hash.setdefault(key.spec.hash, key)
    return Keyring(True, by_hash)


def replace_key(ring: Keyring, key: ApiKey) -> Keyring | None:
    """Return the ring with a newer form of a key that it has, or None when more has changed.

    Most changes are of usage alone, and there may be many keys.
    """
    held = ring.by_hash.get(key.spec.hash)
    if held is None or held.metadata.uid != key.metadata.uid or key.metadata.deletion_timestamp:
        return None
    return Keyring(ring.known, {**ring.by_hash, key.spec.hash: key})


def find_secret(headers: Iterable[RawHeader]) -> str:
    """Return the key in a request's headers; empty without one."""
    given = tuple(headers)
    bearer = find_header(given, b"authorization") or b""
    token = bearer[len(_BEARER) :] if bearer[: len(_BEARER)].lower() == _BEARER else b""
    sent = (token, *(find_header(given, name) for name in _KEY_HEADERS))
    found = next((value.strip() for value in sent if value and value.strip()), b"")
    return found.decode("utf-8", "replace")


def authenticate(
    ring: Keyring, headers: Iterable[RawHeader], now: float, *, require_key: bool
) -> Caller | Refusal:
    """Return who asks; without a required key that is everyone. `now` is epoch seconds."""
    if not ring.known:
        return Refusal(
            Code.NO_READY_ENGINE,
            "The gateway has not seen the keys yet.",
            Retryable.LATER,
            retry_after_seconds=2,
        )
    if not require_key:
        return NOBODY
    secret = find_secret(headers)
    if not secret:
        return Refusal(Code.INVALID_API_KEY, "This endpoint needs an API key.", hint=_HOW)
    hashed = hash_secret(secret)
    key = ring.by_hash.get(hashed)
    # The look-up compares hashes, whose bytes nobody can choose; the last word takes equal time.
    if key is None or not same_hash(key.spec.hash, hashed):
        return Refusal(
            Code.INVALID_API_KEY,
            "The API key is not known here.",
            hint="Ask for one; `mlxctl create key NAME` makes it.",
        )
    return _refuse_retired(key, now) or Caller(key)


def _refuse_retired(key: ApiKey, now: float) -> Refusal | None:
    name = key.metadata.name
    if key.spec.disabled:
        return Refusal(
            Code.INVALID_API_KEY, f"The API key '{name}' is disabled.", hint="Ask for another."
        )
    expires = parse_time(key.spec.expires) if key.spec.expires else None
    if expires is not None and now >= expires:
        return Refusal(
            Code.INVALID_API_KEY,
            f"The API key '{name}' expired at {key.spec.expires}.",
            hint="Ask for another.",
        )
    return None


def refuse_model(caller: Caller, name: str) -> Refusal:
    """Return the refusal of a model that a key may not use, the same whether or not it exists."""
    patterns = [] if caller.key is None else caller.key.spec.models
    more = len(patterns) - _PATTERNS_SHOWN
    listed = ", ".join(patterns[:_PATTERNS_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return Refusal(
        Code.MODEL_NOT_ALLOWED,
        f"The API key '{caller.name}' may not use the model '{shown_name(name)}'.",
        hint=f"It may use: {listed}.",
        param="model",
    )


def _tenant_of(key: ApiKey) -> str:
    """Return a key's tenant: one name for its life, whatever its secret, that nobody can guess."""
    return hashlib.sha256(f"{key.metadata.name} {key.metadata.uid}".encode()).hexdigest()[:32]


def plan_tenancy(caller: Caller, headers: Iterable[RawHeader]) -> dict[str, str]:
    """Return the headers that tell an agent with whom cached prefixes are shared.

    Without declared keys the tenant is named by whatever key the client sent.
    """
    if caller.key is None:
        given = tuple(headers)
        tenant = name_tenant(lambda name: text_of(given, name))
        return {TENANT_HEADER: tenant} if tenant else {}
    isolation = caller.key.spec.cache_isolation
    if isolation is CacheIsolation.SHARED:
        return {}
    named = {TENANT_HEADER: _tenant_of(caller.key)}
    return named | ({ISOLATION_HEADER: "tenant"} if isolation is CacheIsolation.TENANT else {})
