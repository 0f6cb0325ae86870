"""Who may use the gateway, by the keys that were sent; and what agents are told of them."""

import json
from typing import Any

import pytest

from controller.gateway.keys.access import (
    Caller,
    Keyring,
    authenticate,
    find_secret,
    plan_keyring,
    plan_tenancy,
    refuse_model,
    replace_key,
)
from manifests.errors import Code, Refusal
from manifests.kinds.api_key import ApiKey, hash_secret
from manifests.kinds.meta import ObjectMeta
from manifests.wire.gateway import ISOLATION_HEADER, parse_usage_comment, usage_comment
from manifests.wire.tenant import TENANT_HEADER, name_tenant

NOW = 1_790_000_000.0
SECRET = "mlxf-alice"
EVE = ObjectMeta(name="eve", uid="another")


def key(name: str = "alice", secret: str = SECRET, **spec: Any) -> ApiKey:
    raw = {"kind": "ApiKey", "metadata": {"name": name}, "spec": {"hash": hash_secret(secret)}}
    raw["spec"] |= spec
    return ApiKey.model_validate_json(json.dumps(raw))


def bearer(secret: str) -> list[tuple[bytes, bytes]]:
    return [(b"Authorization", b"Bearer " + secret.encode())]


def ask(ring: Keyring, headers: Any = (), *, require_key: bool = True) -> Caller | Refusal:
    return authenticate(ring, headers, NOW, require_key=require_key)


@pytest.mark.parametrize(
    ("headers", "secret"),
    [
        (bearer("k"), "k"),
        ([(b"authorization", b"bearer  k ")], "k"),
        ([(b"x-api-key", b"k")], "k"),
        ([(b"api-key", b"k")], "k"),
        ([(b"authorization", b"Basic eDp5"), (b"x-api-key", b"k")], "k"),
        ([(b"authorization", b"Basic eDp5")], ""),
        ([(b"authorization", b"Bearer ")], ""),
        ([(b"authorization", b"Bearer "), (b"x-api-key", b"k")], "k"),
        ([(b"authorization", "Bearer schlüssel".encode())], "schlüssel"),
        ([(b"authorization", b"Bearer \xff")], "\ufffd"),
        ([], ""),
    ],
)
def test_a_key_is_found_where_clients_put_it(headers: Any, secret: str) -> None:
    assert find_secret(headers) == secret


def test_everyone_may_unless_a_key_is_required() -> None:
    ring = plan_keyring([])
    assert ask(ring, require_key=False) == Caller()
    assert ask(ring, bearer("anything"), require_key=False) == Caller()
    refused = ask(ring, bearer("anything"))
    assert isinstance(refused, Refusal)
    assert refused.code is Code.INVALID_API_KEY


def test_nobody_may_before_the_keys_were_seen() -> None:
    refused = ask(Keyring(), bearer(SECRET))
    assert isinstance(refused, Refusal)
    assert refused.http_status == 503


def test_once_a_key_exists_only_its_holder_may() -> None:
    ring = plan_keyring([key(), key("bob", "mlxf-bob", priority=7)])
    bob = ask(ring, bearer("mlxf-bob"))
    assert isinstance(bob, Caller)
    assert (bob.name, bob.priority) == ("bob", 7)
    for headers in ([], bearer("mlxf-eve"), bearer(hash_secret(SECRET)), bearer(SECRET.upper())):
        refused = ask(ring, headers)
        assert isinstance(refused, Refusal)
        assert refused.http_status == 401
        assert "mlxf" not in refused.message + refused.hint


def test_a_newer_form_of_a_key_replaces_it_and_other_changes_need_a_new_ring() -> None:
    ring = plan_keyring([key(), key("bob", "mlxf-bob")])
    newer = replace_key(ring, key(priority=3))
    assert newer == plan_keyring([key(priority=3), key("bob", "mlxf-bob")])
    assert replace_key(ring, key(secret="mlxf-other")) is None
    assert replace_key(ring, key("eve", SECRET).model_copy(update={"metadata": EVE})) is None
    assert replace_key(plan_keyring([]), key()) is None


@pytest.mark.parametrize(
    ("spec", "word"),
    [({"disabled": True}, "disabled"), ({"expires": "2026-01-01T00:00:00Z"}, "expired")],
)
def test_a_retired_key_says_why_it_is_refused(spec: Any, word: str) -> None:
    refused = ask(plan_keyring([key(**spec)]), bearer(SECRET))
    assert isinstance(refused, Refusal)
    assert (refused.http_status, word in refused.message) == (401, True)


def test_a_key_holds_until_the_moment_it_expires() -> None:
    ring = plan_keyring([key(expires="2026-09-21T14:13:21Z")])
    assert isinstance(authenticate(ring, bearer(SECRET), NOW, require_key=True), Caller)
    assert isinstance(authenticate(ring, bearer(SECRET), NOW + 1, require_key=True), Refusal)


def test_of_two_keys_with_one_secret_the_first_by_name_is_used() -> None:
    caller = ask(plan_keyring([key("zoe"), key("alice")]), bearer(SECRET))
    assert isinstance(caller, Caller)
    assert caller.name == "alice"


def test_a_refused_model_is_refused_alike_whether_or_not_it_exists() -> None:
    caller = Caller(key(models=["llama*"]))
    assert caller.may_use("alias", "llama-2")
    assert not caller.may_use("qwen")
    refused = refuse_model(caller, "qwen")
    assert (refused.http_status, refused.hint) == (403, "It may use: llama*.")


def test_a_tenant_is_the_key_and_not_what_the_client_sent() -> None:
    headers = bearer(SECRET)
    assert plan_tenancy(Caller(), headers) == {
        TENANT_HEADER: name_tenant({"authorization": f"Bearer {SECRET}"}.get)
    }
    assert plan_tenancy(Caller(), []) == {}
    named = plan_tenancy(Caller(key()), headers)
    assert list(named) == [TENANT_HEADER]
    assert len(named[TENANT_HEADER]) == 32
    # The secret may be changed; another key is another tenant.
    assert plan_tenancy(Caller(key(secret="mlxf-new")), headers) == named
    assert plan_tenancy(Caller(key("bob")), headers) != named
    assert plan_tenancy(Caller(key(cacheIsolation="shared")), headers) == {}
    assert plan_tenancy(Caller(key(cacheIsolation="tenant")), headers) == {
        **named,
        ISOLATION_HEADER: "tenant",
    }


def test_what_an_answer_cost_so_far_survives_the_wire() -> None:
    assert parse_usage_comment(usage_comment(12, 5).rstrip(b"\n")) == (12, 5)
    for other in (
        b": keep-alive prefill 1/2",
        b": usage 1",
        b": usage -1 2",
        b": usage 1 2 3",
        b"",
    ):
        assert parse_usage_comment(other) is None
