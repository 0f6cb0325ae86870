"""Who asks, as a gateway tells an agent, and whom cached prefixes are kept apart from.

The name of who asks is made of the client's key and never the key.

Pure. The gateway takes the header off what clients send and sets its own; an agent that is asked
directly makes the same name from the key it was sent.
"""

import hashlib
from collections.abc import Callable

TENANT_HEADER = "x-mlxfleet-tenant"
KEY_HEADERS = ("authorization", "x-api-key", "api-key")


def name_tenant(find: Callable[[str], str | None]) -> str:
    """Return the tenant of a request by the key in its headers; empty without one.

    `find` returns a header's value by its lower-case name.
    """
    key = next((value for name in KEY_HEADERS if (value := find(name))), "")
    return hashlib.sha256(key.encode()).hexdigest()[:32] if key else ""


def cache_keys(tenant: str, cache_salt: str, *, isolated: bool) -> tuple[str, ...]:
    """Return the extra keys of a prompt's prefix chain; equal keys share prefixes.

    All who send no key are one tenant. A client's own salt always counts.
    """
    keys = (f"tenant {tenant}",) if isolated else ()
    return (*keys, f"salt {cache_salt}") if cache_salt else keys
