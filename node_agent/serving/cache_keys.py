"""What keeps the cached prefixes of one client apart from those of another.

Pure. A cached prefix answers faster, so whoever shares a cache can find out by the clock what
others have asked. With `isolation: tenant` a node shares prefixes only within a tenant.
"""

from collections.abc import Mapping

from manifests.wire.gateway import ISOLATION_HEADER
from manifests.wire.tenant import TENANT_HEADER, cache_keys, name_tenant
from node_agent.serving.request import GenerationRequest


def find_tenant(headers: Mapping[str, str]) -> str:
    """Return who asks: as the gateway says, else by the key that was sent, else nobody."""
    return headers.get(TENANT_HEADER, "") or name_tenant(headers.get)


def wants_isolation(headers: Mapping[str, str]) -> bool:
    """Whether a gateway says that the tenant shares its prefixes with nobody."""
    return headers.get(ISOLATION_HEADER) == "tenant"


def plan_extra_keys(request: GenerationRequest, *, isolated: bool) -> list[str]:
    """Return the extra keys of a request's prefix chain; equal keys share prefixes.

    `isolated` is what the node's CacheBudget says; a request may ask for it too.
    """
    isolated = isolated or request.isolated
    return list(cache_keys(request.tenant, request.cache_salt, isolated=isolated))
