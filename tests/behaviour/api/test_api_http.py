"""The API as clients meet it: verbs, Status bodies, tables, discovery."""

import io
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tests.support.controllers import API, MERGE, TABLE, call, serving
from tests.support.objects import api_key, engine, event, model, node, route


class Client:
    """A session bound to one server."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session, self.url = session, url

    async def __call__(self, method: str, path: str, body: Any = None, **kwargs: Any) -> Any:
        full = path if path.startswith("http") else self.url + path
        return await call(self.session, method, full, body, **kwargs)


@pytest.fixture
async def api() -> AsyncIterator[Client]:
    async with serving() as url, aiohttp.ClientSession() as session:
        yield Client(session, url)


MODELS = f"{API}/models"


async def test_an_object_lives_through_every_verb(api):
    status, made = await api("POST", MODELS, model())
    assert (status, made["metadata"]["generation"]) == (201, 1)
    status, found = await api("GET", f"{MODELS}/m")
    assert (status, found) == (200, made)
    status, scaled = await api("PATCH", f"{MODELS}/m", {"spec": {"replicas": 2}}, headers=MERGE)
    assert (status, scaled["spec"]["replicas"]) == (200, 2)
    status, put = await api("PUT", f"{MODELS}/m", scaled | {"spec": model()["spec"]})
    assert (status, put["spec"]["replicas"], put["metadata"]["generation"]) == (200, 1, 3)
    status, listed = await api("GET", MODELS)
    assert (listed["kind"], listed["items"]) == ("ModelList", [put])
    assert listed["metadata"]["resourceVersion"] == "3"
    status, gone = await api("DELETE", f"{MODELS}/m")
    assert (status, gone["status"]) == (200, "Success")
    assert gone["details"]["uid"] == made["metadata"]["uid"]
    status, missing = await api("GET", f"{MODELS}/m")
    assert (status, missing["message"]) == (404, 'models.mlxfleet.dev "m" not found')


async def test_status_and_spec_have_their_own_routes(api):
    await api("POST", MODELS, model())
    body = {"spec": {"replicas": 9}, "status": {"readyReplicas": 1}}
    _, reported = await api("PATCH", f"{MODELS}/m/status", body, headers=MERGE)
    assert (reported["spec"]["replicas"], reported["status"]["readyReplicas"]) == (1, 1)
    body = {"spec": {"replicas": 9}, "status": {"readyReplicas": 7}}
    _, declared = await api("PATCH", f"{MODELS}/m", body, headers=MERGE)
    assert (declared["spec"]["replicas"], declared["status"]["readyReplicas"]) == (9, 1)
    assert (await api("GET", f"{MODELS}/m/status"))[1] == declared


JSON_TYPE = "UnsupportedMediaType"
BAD = "BadRequest"
# method, path, body, headers; then code, reason and words of the Status.
REFUSALS: list[tuple[tuple[str, str, Any, dict[str, str]], tuple[int, str, str]]] = [
    (("GET", "/nothing", None, {}), (404, "NotFound", "could not find the requested resource")),
    (("GET", f"{API}/widgets", None, {}), (404, "NotFound", "could not find")),
    (("GET", f"{API}/models/m/scale", None, {}), (404, "NotFound", "could not find")),
    (("GET", f"{API}/namespaces/x/models", None, {}), (404, "NotFound", "could not find")),
    (("DELETE", MODELS, None, {}), (405, "MethodNotAllowed", "DELETE is not allowed")),
    (("POST", MODELS, {"kind": "Model"}, {}), (400, BAD, "apiVersion is missing")),
    (("POST", MODELS, [1], {}), (400, BAD, "must be a JSON object")),
    (("POST", MODELS, model(replicas=-1), {}), (422, "Invalid", "spec.replicas")),
    (
        ("POST", MODELS, model(), {"Content-Type": "text/plain"}),
        (415, JSON_TYPE, "application/json"),
    ),
    (("PATCH", f"{MODELS}/m", {}, {}), (415, JSON_TYPE, "merge-patch")),
    (("PATCH", f"{MODELS}/m", {}, MERGE), (404, "NotFound", '"m" not found')),
    (("GET", f"{MODELS}?labelSelector=env%20in%20()", None, {}), (400, BAD, "position 9")),
    (("GET", f"{MODELS}?fieldSelector=spec.x%3D1", None, {}), (400, BAD, "metadata.name")),
    (("GET", f"{MODELS}?resourceVersion=abc", None, {}), (400, BAD, "abc")),
    (("GET", f"{MODELS}?watch=maybe", None, {}), (400, BAD, "maybe")),
    (("GET", f"{MODELS}?limit=-1", None, {}), (400, BAD, "limit")),
    (("POST", f"{MODELS}?dryRun=Some", model(), {}), (400, BAD, "All")),
    (("POST", f"{MODELS}?fieldValidation=Lax", model(), {}), (400, BAD, "Strict")),
    (("GET", MODELS, None, {"Impersonate-User": "root"}), (403, "Forbidden", "impersonation")),
    (
        ("GET", f"{MODELS}?watch=1&sendInitialEvents=true", None, {}),
        (422, "Invalid", "NotOlderThan"),
    ),
]


@pytest.mark.parametrize(("asked", "told"), REFUSALS)
async def test_every_refusal_is_a_status(api, asked, told):
    method, path, body, headers = asked
    code, reason, words = told
    answered, status = await api(method, path, body, headers=headers)
    assert (answered, status["kind"], status["status"]) == (code, "Status", "Failure")
    assert (status["code"], status["reason"]) == (code, reason)
    assert words in status["message"]


async def test_each_wrong_field_is_a_cause(api):
    _, status = await api("POST", MODELS, model(replicas=-1, prefill={"chunkTokens": "x"}))
    causes = {cause["field"]: cause["reason"] for cause in status["details"]["causes"]}
    assert causes == {
        "spec.replicas": "FieldValueInvalid",
        "spec.prefill.chunkTokens": "FieldValueTypeInvalid",
    }
    assert status["details"]["kind"] == "Model"


@pytest.mark.parametrize("body", [b'{"a":1,"a":2}', b"{", b"\xff", b'{"x":NaN}', b"[" * 5000])
async def test_a_body_that_is_not_clean_json_is_refused(api, body):
    headers = {"Content-Type": "application/json"}
    async with api.session.post(api.url + MODELS, data=body, headers=headers) as answer:
        assert answer.status == 400
        assert (await answer.json())["reason"] == "BadRequest"


async def test_an_oversized_body_is_refused_whether_or_not_its_length_is_told(api):
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b" " * 100_000

    headers = {"Content-Type": "application/json"}
    for data in (io.BytesIO(b" " * 4_000_000), pieces()):
        async with api.session.post(api.url + MODELS, data=data, headers=headers) as answer:
            assert answer.status == 413
            assert (await answer.json())["reason"] == "RequestEntityTooLarge"


async def test_unknown_fields_warn_unless_told_otherwise(api):
    headers = {"Content-Type": "application/json"}
    url = api.url + MODELS
    async with api.session.post(url, json=model(replicaz=1), headers=headers) as answer:
        assert answer.status == 201
        assert 'unknown field \\"spec.replicaz\\"' in answer.headers["Warning"]
        assert "replicaz" not in (await answer.json())["spec"]
    code, status = await api("POST", f"{MODELS}?fieldValidation=Strict", model("n", replicaz=1))
    assert code == 400
    assert 'strict decoding error: unknown field "spec.replicaz"' in status["message"]


@pytest.mark.parametrize("mode", ["Strict", "Warn", "Ignore"])
async def test_a_secret_is_refused_however_lenient_the_writer_is(api, mode):
    raw = api_key("k")
    raw["metadata"]["annotations"] = {"x/last-applied": "it would be kept here"}
    raw["spec"]["secret"] = "mlxf-plain"
    status, told = await api("POST", f"{API}/apikeys", raw, params={"fieldValidation": mode})
    assert status == 422
    assert told["details"]["causes"][0]["field"] == "spec.secret"
    assert "mlxctl create key NAME" in told["message"]
    assert "mlxf-plain" not in str(told)
    assert (await api("GET", f"{API}/apikeys"))[1]["items"] == []


async def test_usage_and_conditions_are_written_apart_by_two_writers(api):
    await api("POST", f"{API}/apikeys", api_key("k"))
    usage = {"status": {"usage": {"requests": 3, "promptTokens": 7}}}
    _, seen = await api("PATCH", f"{API}/apikeys/k/status", usage, headers=MERGE)
    version = seen["metadata"]["resourceVersion"]
    condition = {"type": "Usable", "status": "True", "reason": "Usable"}
    patch = {"status": {"conditions": [condition]}}
    await api("PATCH", f"{API}/apikeys/k/status", patch, headers=MERGE)
    _, now = await api("GET", f"{API}/apikeys/k")
    assert now["status"]["usage"]["promptTokens"] == 7
    assert now["status"]["conditions"][0]["type"] == "Usable"
    assert now["metadata"]["generation"] == 1
    stale = usage | {"metadata": {"resourceVersion": version}}
    status, _ = await api("PATCH", f"{API}/apikeys/k/status", stale, headers=MERGE)
    assert status == 409


async def test_a_dry_run_answers_and_stores_nothing(api):
    code, would = await api("POST", f"{MODELS}?dryRun=All", model())
    assert (code, would["spec"]["replicas"]) == (201, 1)
    assert (await api("GET", f"{MODELS}/m"))[0] == 404
    await api("POST", MODELS, model())
    options = {"kind": "DeleteOptions", "apiVersion": "v1", "dryRun": ["All"]}
    assert (await api("DELETE", f"{MODELS}/m", options))[0] == 200
    assert (await api("GET", f"{MODELS}/m"))[0] == 200


async def test_a_delete_honours_its_preconditions_and_its_finalizers(api):
    await api("POST", f"{API}/engines", engine())
    path = f"{API}/engines/m-1"
    await api("PATCH", path, {"metadata": {"finalizers": ["a.dev/x"]}}, headers=MERGE)
    code, status = await api("DELETE", path, {"preconditions": {"uid": "other"}})
    assert (code, status["reason"]) == (409, "Conflict")
    code, marked = await api("DELETE", path, {"propagationPolicy": "Background"})
    assert (code, marked["kind"]) == (200, "Engine")
    assert marked["metadata"]["deletionTimestamp"]
    code, _ = await api("PATCH", path, {"metadata": {"finalizers": []}}, headers=MERGE)
    assert code == 200
    assert (await api("GET", path))[0] == 404
    assert (await api("DELETE", path, {"propagationPolicy": "Orphan"}))[0] == 400


async def test_a_strategic_patch_without_directives_is_a_merge_patch(api):
    await api("POST", MODELS, model())
    headers = {"Content-Type": "application/strategic-merge-patch+json"}
    code, patched = await api("PATCH", f"{MODELS}/m", {"spec": {"replicas": 5}}, headers=headers)
    assert (code, patched["spec"]["replicas"]) == (200, 5)
    body = {"spec": {"aliases": [{"$patch": "delete"}]}}
    code, status = await api("PATCH", f"{MODELS}/m", body, headers=headers)
    assert (code, "--type merge" in status["message"]) == (415, True)


async def test_tables_carry_columns_cells_and_metadata(api):
    await api("POST", f"{API}/nodes", node())
    gib = 1 << 30
    status = {
        "ceilings": {"hardBytes": 40 * gib, "binding": "metal"},
        "usedBytes": 8 * gib,
        "headroomBytes": 32 * gib,
        "engines": 1,
        "conditions": [{"type": "Ready", "status": "True", "reason": "AgentReady"}],
    }
    await api("PATCH", f"{API}/nodes/mini/status", {"status": status}, headers=MERGE)
    _, table = await api("GET", f"{API}/nodes", headers=TABLE)
    assert (table["kind"], table["metadata"]["resourceVersion"]) == ("Table", "2")
    always = [c["name"] for c in table["columnDefinitions"] if not c["priority"]]
    assert always == ["Name", "Status", "Pressure", "Ceiling", "Used", "Headroom", "Engines", "Age"]
    cells = table["rows"][0]["cells"]
    assert cells[:7] == ["mini", "Ready", "ok", "40.0 GiB (metal)", "8.00 GiB", "32.0 GiB", 1]
    assert table["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
    _, one = await api("GET", f"{API}/nodes/mini?includeObject=Object", headers=TABLE)
    assert one["rows"][0]["object"]["status"]["engines"] == 1


@pytest.mark.parametrize(
    "obj",
    [model(), engine(), node(), event("e", "2026-01-01T00:00:00Z"), route("r"), api_key("k")],
    ids=lambda o: o["kind"],
)
async def test_every_kind_has_a_table_with_a_cell_for_each_column(api, obj):
    path = f"{API}/{obj['kind'].lower()}s"
    await api("POST", path, obj)
    _, table = await api("GET", path, headers=TABLE)
    assert len(table["rows"][0]["cells"]) == len(table["columnDefinitions"]) > 3


async def test_paging_lists_everything_once(api):
    for number in range(5):
        await api("POST", MODELS, model(f"m{number}"))
    names, token = [], ""
    while True:
        _, page = await api("GET", MODELS, params={"limit": "2", "continue": token})
        names += [item["metadata"]["name"] for item in page["items"]]
        token = page["metadata"].get("continue", "")
        if not token:
            break
        assert page["metadata"]["remainingItemCount"] == 5 - len(names)
    assert names == [f"m{number}" for number in range(5)]


async def test_discovery_names_every_kind_and_slashes_do_not_matter(api):
    for path in ("/version", "/api", "/apis", "/apis/mlxfleet.dev", API):
        plain, slashed = await api("GET", path), await api("GET", path + "/")
        assert plain == slashed
        assert plain[0] == 200
    resources = (await api("GET", API))[1]["resources"]
    named = {item["name"]: item for item in resources}
    assert {"models", "models/status", "nodes", "engines", "events"} <= set(named)
    assert "events/status" not in named
    assert named["models"]["shortNames"] == ["mdl"]
    assert named["routes"]["shortNames"] == ["rt"]
    assert named["apikeys"]["shortNames"] == ["key", "keys"]
    assert {"routes/status", "apikeys/status"} <= set(named)
    assert (await api("GET", "/version"))[1]["gitVersion"].startswith("v1.35.2+fleet.")


async def test_health_answers_as_text(api):
    async with api.session.get(api.url + "/healthz") as answer:
        assert (answer.status, await answer.text()) == (200, "ok\n")
    async with api.session.get(api.url + "/readyz") as answer:
        assert (answer.status, await answer.text()) == (200, "[+] store: ok\n")
    async with api.session.get(api.url + "/metrics") as answer:
        assert answer.status == 200


async def test_without_the_reconcile_role_a_plan_is_refused_with_the_reason(api):
    code, status = await api("POST", "/fleet/v1/plan", {"items": [model()]})
    assert (code, "reconcile role" in status["message"]) == (503, True)
