"""What the registry stores, keeps apart, counts and refuses (B73, B76, B77, B79)."""

import asyncio

import pytest

from controller.registry.admission import FieldValidation
from controller.registry.registry import DeleteOptions, Registry, Sources, WriteOptions, merging
from controller.store.memory import MemoryStore
from manifests.wire.status import ApiError
from tests.support.objects import engine, event, guard, model

DRY = WriteOptions(dry_run=True)


@pytest.fixture
def registry() -> Registry:
    suffixes = iter(["taken", "taken", "fresh", "other"])
    sources = Sources(now=lambda: 1_700_000_000.0, suffix=lambda: next(suffixes))
    return Registry(MemoryStore(), sources)


async def refused(awaitable, code: int, words: str = ".") -> ApiError:
    with pytest.raises(ApiError, match=words) as refusal:
        await awaitable
    assert refusal.value.code == code
    return refusal.value


async def test_a_new_object_gets_identity_and_visible_defaults(registry):
    made = await registry.create("models", model())
    meta = made["metadata"]
    assert meta["resourceVersion"] == "1"
    assert meta["generation"] == 1
    assert meta["creationTimestamp"] == "2023-11-14T22:13:20Z"
    assert len(meta["uid"]) == 36
    assert made["spec"]["replicas"] == 1
    assert made == await registry.get("models", "m")


async def test_quantities_keep_the_spelling_of_their_writer(registry):
    made = await registry.create("memoryguards", guard(staticReserve="8192Mi"))
    assert made["spec"]["staticReserve"] == "8192Mi"
    assert made["spec"]["prefillTransientMargin"] == "256Mi"


async def test_a_taken_name_is_refused(registry):
    await registry.create("models", model())
    error = await refused(registry.create("models", model()), 409, "already exists")
    assert error.reason == "AlreadyExists"


async def test_generated_names_avoid_taken_ones(registry):
    generated = model()
    generated["metadata"] = {"generateName": "chat-"}
    first = await registry.create("models", generated)
    second = await registry.create("models", generated)
    assert (first["metadata"]["name"], second["metadata"]["name"]) == ("chat-taken", "chat-fresh")


async def test_server_owned_metadata_is_not_taken_from_clients(registry):
    forged = model()
    forged["metadata"] |= {
        "uid": "mine",
        "generation": 99,
        "creationTimestamp": "1999-01-01T00:00:00Z",
        "deletionTimestamp": "1999-01-01T00:00:00Z",
        "namespace": "default",
    }
    made = await registry.create("models", forged)
    assert made["metadata"]["generation"] == 1
    assert made["metadata"]["uid"] != "mine"
    assert {"deletionTimestamp", "namespace"}.isdisjoint(made["metadata"])
    patched = await registry.patch("models", "m", {"metadata": {"generation": 50}})
    assert patched == made


async def test_creating_with_a_resource_version_is_refused(registry):
    old = model()
    old["metadata"]["resourceVersion"] = "7"
    await refused(registry.create("models", old), 400, "should not be set")


@pytest.mark.parametrize(
    ("change", "words"),
    [({"kind": "Node"}, "kind is 'Node'"), ({"apiVersion": "v1"}, "apiVersion is 'v1'")],
)
async def test_type_and_address_must_agree(registry, change, words):
    await refused(registry.create("models", model() | change), 400, words)


async def test_every_fault_of_an_object_is_a_cause(registry):
    bad = model(replicas=-1, aliases="x")
    error = await refused(registry.create("models", bad), 422, "Model.mlxfleet.dev")
    fields = {cause.field for cause in error.details.causes}
    assert fields == {"spec.replicas", "spec.aliases"}
    assert (error.reason, error.details.kind) == ("Invalid", "Model")


async def test_unknown_fields_follow_the_asked_validation(registry):
    odd = model(replicaz=2)
    error = await refused(registry.create("models", odd), 400, 'unknown field "spec.replicaz"')
    assert "strict decoding error" in error.message
    warned = await registry.create_with(
        "models", odd, WriteOptions(validation=FieldValidation.WARN)
    )
    assert len(warned.warnings) == 1
    assert "spec.replicaz" in warned.warnings[0]
    assert "replicaz" not in warned.object["spec"]
    ignored = WriteOptions(validation=FieldValidation.IGNORE)
    assert (await registry.create_with("models", model("n", x=1), ignored)).warnings == ()


async def test_generation_moves_with_the_spec_only(registry):
    await registry.create("models", model())
    labelled = await registry.patch("models", "m", {"metadata": {"labels": {"a": "b"}}})
    assert labelled["metadata"]["generation"] == 1
    scaled = await registry.patch("models", "m", {"spec": {"replicas": 3}})
    assert scaled["metadata"]["generation"] == 2
    reported = await registry.patch(
        "models", "m", {"status": {"readyReplicas": 1}}, subresource="status"
    )
    assert reported["metadata"]["generation"] == 2
    assert reported["status"]["readyReplicas"] == 1


async def test_another_spelling_is_stored_and_is_no_new_generation(registry):
    await registry.create("memoryguards", guard(staticReserve="8Gi"))
    respelt = await registry.patch("memoryguards", "g", {"spec": {"staticReserve": "8192Mi"}})
    assert respelt["spec"]["staticReserve"] == "8192Mi"
    assert respelt["metadata"]["generation"] == 1
    assert respelt["metadata"]["resourceVersion"] == "2"


async def test_a_write_without_effect_keeps_the_version(registry):
    made = await registry.create("models", model(replicas=2))
    again = await registry.replace("models", "m", model(replicas=2))
    patched = await registry.patch("models", "m", {"spec": {"replicas": 2, "toolParser": None}})
    assert made == again == patched


async def test_spec_writes_leave_status_and_status_writes_leave_the_rest(registry):
    made = await registry.create("models", model() | {"status": {"readyReplicas": 9}})
    assert made["status"]["readyReplicas"] == 0
    await registry.patch("models", "m", {"status": {"readyReplicas": 2}}, subresource="status")
    put = await registry.replace(
        "models", "m", model(replicas=4) | {"status": {"readyReplicas": 9}}
    )
    assert (put["spec"]["replicas"], put["status"]["readyReplicas"]) == (4, 2)
    sneaky = model(replicas=8) | {"status": {"readyReplicas": 3}}
    sneaky["metadata"]["labels"] = {"sneaky": "yes"}
    status = await registry.replace("models", "m", sneaky, subresource="status")
    assert (status["spec"]["replicas"], status["status"]["readyReplicas"]) == (4, 3)
    assert "labels" not in status["metadata"]


async def test_events_have_no_status_route(registry):
    await registry.create("events", event("e"))
    await refused(registry.patch("events", "e", {}, subresource="status"), 404)
    counted = await registry.patch("events", "e", {"count": 2})
    assert counted["count"] == 2


async def test_null_deletes_and_is_never_stored(registry):
    await registry.create("models", model(memoryGuard="g"))
    cleared = await registry.patch("models", "m", {"spec": {"memoryGuard": None, "replicas": None}})
    assert "memoryGuard" not in cleared["spec"]
    assert cleared["spec"]["replicas"] == 1
    assert "None" not in str(cleared)


async def test_a_stale_put_is_told_the_current_version(registry):
    made = await registry.create("models", model())
    await registry.patch("models", "m", {"spec": {"replicas": 2}})
    stale = model(replicas=5)
    stale["metadata"]["resourceVersion"] = made["metadata"]["resourceVersion"]
    error = await refused(registry.replace("models", "m", stale), 409, "latest is 2")
    assert error.reason == "Conflict"
    patch = {"metadata": {"resourceVersion": "1"}, "spec": {"replicas": 5}}
    await refused(registry.patch("models", "m", patch), 409)
    del stale["metadata"]["resourceVersion"]
    assert (await registry.replace("models", "m", stale))["spec"]["replicas"] == 5


async def test_a_put_with_another_uid_or_name_is_refused(registry):
    await registry.create("models", model())
    other = model()
    other["metadata"]["uid"] = "someone-else"
    await refused(registry.replace("models", "m", other), 409, "uid")
    await refused(registry.replace("models", "m", model("n")), 400, "does not match")
    await refused(registry.replace("models", "ghost", model("ghost")), 404)


async def test_fixed_fields_name_old_and_new_value_and_the_way_out(registry):
    await registry.create("engines", engine(node="mini"))
    error = await refused(
        registry.patch("engines", "m-1", {"spec": {"node": "studio"}}), 422, "'mini'.*'studio'"
    )
    assert error.details.causes[0].field == "spec.node"
    assert "delete" in error.message
    same = await registry.patch("engines", "m-1", {"spec": {"node": "mini"}})
    assert same["metadata"]["resourceVersion"] == "1"


async def test_a_dry_run_decides_everything_and_stores_nothing(registry):
    would = await registry.create_with("models", model(), DRY)
    assert would.object["spec"]["replicas"] == 1
    await refused(registry.get("models", "m"), 404)
    await registry.create("models", model())
    await refused(registry.create_with("models", model(), DRY), 409)
    scaled = await registry.update_with("models", "m", merging({"spec": {"replicas": 7}}), DRY)
    assert scaled.object["spec"]["replicas"] == 7
    assert scaled.object["metadata"]["resourceVersion"] == "1"
    await registry.delete_with("models", "m", DeleteOptions(dry_run=True))
    assert (await registry.get("models", "m"))["spec"]["replicas"] == 1


async def test_status_reports_never_make_a_users_patch_fail(registry):
    await registry.create("models", model())

    async def report() -> None:
        for number in range(50):
            body = {"status": {"readyReplicas": number}}
            await registry.patch("models", "m", body, subresource="status")
            await asyncio.sleep(0)

    async def apply() -> None:
        for number in range(50):
            await registry.patch("models", "m", {"spec": {"replicas": number}})
            await asyncio.sleep(0)

    await asyncio.gather(report(), apply())
    final = await registry.get("models", "m")
    assert (final["spec"]["replicas"], final["status"]["readyReplicas"]) == (49, 49)
