"""Who shares cached prefixes with whom."""

from manifests.prompt.body import TextPrompts
from manifests.wire.gateway import ISOLATION_HEADER
from manifests.wire.tenant import name_tenant
from node_agent.serving.cache_keys import find_tenant, plan_extra_keys, wants_isolation
from node_agent.serving.request import Endpoint, GenerationRequest


def test_the_gateways_word_counts_before_a_key() -> None:
    assert find_tenant({"x-mlxfleet-tenant": "t", "authorization": "Bearer k"}) == "t"
    assert find_tenant({}) == ""


def test_a_key_makes_the_same_tenant_at_the_gateway_and_at_an_agent_and_is_not_shown() -> None:
    headers = {"authorization": "Bearer secret-key"}
    tenant = find_tenant(headers)
    assert tenant == name_tenant(headers.get)
    assert len(tenant) == 32
    assert "secret" not in tenant
    assert tenant != find_tenant({"authorization": "Bearer other-key"})


def keys(tenant: str = "", salt: str = "", *, isolated: bool) -> list[str]:
    request = GenerationRequest(
        Endpoint.COMPLETIONS, "m", TextPrompts(), tenant=tenant, cache_salt=salt
    )
    return plan_extra_keys(request, isolated=isolated)


def test_tenants_are_kept_apart_only_where_the_budget_says_so() -> None:
    assert keys("a", isolated=False) == keys("b", isolated=False) == []
    assert keys("a", isolated=True) != keys("b", isolated=True)
    assert keys("", isolated=True) == keys("", isolated=True)


def test_a_gateway_may_ask_for_it_where_the_budget_does_not() -> None:
    assert wants_isolation({ISOLATION_HEADER: "tenant"})
    assert not wants_isolation({ISOLATION_HEADER: "none"})
    asks = [
        GenerationRequest(Endpoint.COMPLETIONS, "m", TextPrompts(), tenant=name, isolated=True)
        for name in "ab"
    ]
    first, second = (plan_extra_keys(one, isolated=False) for one in asks)
    assert first != second
    assert first == keys("a", isolated=True)


def test_a_clients_own_salt_always_counts_and_is_no_way_into_anothers_tenant() -> None:
    assert keys(salt="s", isolated=False) != keys(isolated=False)
    assert keys("a", "s", isolated=True) != keys("b", "s", isolated=True)
    assert keys(salt="tenant a", isolated=False) != keys("a", isolated=True)
