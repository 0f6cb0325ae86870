"""Who goes first: what a client asks, within what its key allows."""

import json

import pytest

from controller.gateway.exchange import Exchange
from controller.gateway.http.peek import Peeked, peek
from controller.gateway.keys.access import Caller
from manifests.kinds.api_key import ApiKey, hash_secret
from manifests.wire.tenant import TENANT_HEADER


def exchange(asked: int, key_priority: int | None) -> Exchange:
    # Clients write a lower number for what goes first.
    peeked = peek(json.dumps({"model": "m", "priority": -asked}).encode())
    assert isinstance(peeked, Peeked)
    caller = Caller()
    if key_priority is not None:
        spec = {"hash": hash_secret("s"), "priority": key_priority}
        raw = {"kind": "ApiKey", "metadata": {"name": "alice"}, "spec": spec}
        caller = Caller(ApiKey.model_validate_json(json.dumps(raw)))
    return Exchange(None, None, peeked, "m", b"", 0.0, caller=caller, tenancy={TENANT_HEADER: "t"})


@pytest.mark.parametrize(
    ("asked", "key", "priority"),
    [(7, None, 7), (-7, None, -7), (7, 0, 0), (7, 20, 20), (-7, 20, 13), (0, -5, -5), (9, -5, -5)],
)
def test_a_client_may_stand_back_behind_its_key_and_never_ahead(
    asked: int, key: int | None, priority: int
) -> None:
    assert exchange(asked, key).priority == priority


def test_places_are_shared_between_keys_whatever_their_caches_are() -> None:
    assert (exchange(0, None).tenant, exchange(0, None).key_name) == ("t", "")
    assert (exchange(0, 1).tenant, exchange(0, 1).key_name) == ("alice", "alice")
