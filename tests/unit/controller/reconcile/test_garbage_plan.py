from typing import Any

from controller.reconcile.garbage_plan import is_garbage
from manifests.kinds.meta import FleetObject
from manifests.kinds.scheme import parse_object

API = "mlxfleet.dev/v1alpha1"


def owned(*owners: tuple[str, str], terminating: bool = False, api: str = API) -> FleetObject:
    meta: dict[str, Any] = {
        "name": "e",
        "ownerReferences": [
            {"apiVersion": api, "kind": kind, "name": "x", "uid": uid} for kind, uid in owners
        ],
    }
    if terminating:
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    spec = {"model": "m", "node": "n", "revision": "r", "source": {"path": "/x"}}
    return parse_object({"apiVersion": API, "kind": "Engine", "metadata": meta, "spec": spec})


def test_an_object_goes_when_every_owner_is_gone() -> None:
    both = owned(("Model", "u1"), ("Model", "u2"))
    assert is_garbage(both, {"u1": False, "u2": False})
    assert not is_garbage(both, {"u1": False, "u2": True})


def test_an_object_without_owners_or_already_leaving_is_left_alone() -> None:
    assert not is_garbage(owned(), {})
    assert not is_garbage(owned(("Model", "u1"), terminating=True), {"u1": False})


def test_an_owner_that_is_not_ours_to_judge_counts_as_alive() -> None:
    assert not is_garbage(owned(("Deployment", "u1")), {"u1": False})
    assert not is_garbage(owned(("Model", "u1"), api="apps/v1"), {"u1": False})
