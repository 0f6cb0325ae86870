"""Which headers pass the gateway in each direction; pure."""

from collections.abc import Iterable, Mapping
from functools import lru_cache

from controller.gateway.http.asgi import RawHeader, find_header
from controller.gateway.nodes.endpoints import EndpointKey

_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_NOT_UPSTREAM = _HOP_BY_HOP | {
    b"accept-encoding",
    b"api-key",
    b"authorization",
    b"content-length",
    b"cookie",
    b"expect",
    b"host",
    b"x-api-key",
    b"x-request-id",
}
_NOT_DOWNSTREAM = _HOP_BY_HOP | {b"content-length", b"date", b"server", b"x-request-id"}
_OURS = b"x-mlxfleet-"
_NO_NAMES: frozenset[str] = frozenset()


def plan_upstream_headers(
    headers: Iterable[RawHeader], request_id: str, told: Mapping[str, str]
) -> dict[str, str]:
    """Return what the agent gets: no hop-by-hop header, no key of the client, our request id.

    `told` are the gateway's own headers for agents; those that a client sends are dropped.
    """
    given = tuple(headers)
    dropped = _named_by_connection(given)
    passed = {
        kept: value.decode("latin-1")
        for name, value in given
        if (kept := _upstream_name(name)) and kept not in dropped
    }
    return {**passed, "x-request-id": request_id, "accept-encoding": "identity", **told}


def plan_downstream_headers(
    headers: Iterable[RawHeader], endpoint: EndpointKey
) -> tuple[RawHeader, ...]:
    """Return what the client gets: the agent's headers and who answered."""
    given = tuple(headers)
    dropped = _named_by_connection(given)
    passed = tuple(
        (kept.encode("latin-1"), value)
        for name, value in given
        if (kept := _downstream_name(name)) and kept not in dropped
    )
    return (
        *passed,
        (b"x-mlxfleet-node", endpoint.node.encode("latin-1")),
        (b"x-mlxfleet-engine", endpoint.engine.encode("latin-1")),
    )


def text_of(headers: Iterable[RawHeader], name: str) -> str:
    """Return a header's first value as text, empty without one. `name` is lower case."""
    return (find_header(headers, name.encode()) or b"").decode("latin-1")


@lru_cache(maxsize=256)
def _upstream_name(name: bytes) -> str:
    """Return a header's name as agents get it; empty for one that does not pass."""
    return _passed(name.lower(), _NOT_UPSTREAM)


@lru_cache(maxsize=256)
def _downstream_name(name: bytes) -> str:
    """Return a header's name as clients get it; empty for one that does not pass."""
    return _passed(name.lower(), _NOT_DOWNSTREAM)


def _passed(lower: bytes, dropped: frozenset[bytes]) -> str:
    return "" if lower in dropped or lower.startswith(_OURS) else lower.decode("latin-1")


def _named_by_connection(headers: Iterable[RawHeader]) -> frozenset[str]:
    value = find_header(headers, b"connection")
    if value is None:
        return _NO_NAMES
    names = value.decode("latin-1").lower().split(",")
    return frozenset(item.strip() for item in names if item.strip())
