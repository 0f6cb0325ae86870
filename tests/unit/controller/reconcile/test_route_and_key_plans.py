"""What the conditions of Routes and ApiKeys say."""

import json
from typing import Any

from controller.reconcile.api_key_plan import plan_key
from controller.reconcile.route_plan import plan_route
from manifests.kinds.api_key import ApiKey, hash_secret
from manifests.kinds.meta import find_condition
from manifests.kinds.model import Model
from manifests.kinds.route import Route
from manifests.kinds.route_names import plan_route_names
from manifests.times import parse_time

NOW = "2026-11-28T12:00:00Z"
SECONDS = parse_time(NOW) or 0.0


def route(name: str, made: str = "", **spec: Any) -> Route:
    meta = {"name": name, "generation": 3, "creationTimestamp": made}
    raw = {"kind": "Route", "metadata": meta, "spec": {"backends": [{"model": "a"}], **spec}}
    return Route.model_validate_json(json.dumps(raw))


def model(name: str, *aliases: str) -> Model:
    spec = {"source": {"path": "/m"}, "aliases": list(aliases)}
    return Model.model_validate_json(
        json.dumps({"kind": "Model", "metadata": {"name": name}, "spec": spec})
    )


def said(one: Route, *others: Route, models: tuple[Model, ...] = ()) -> dict[str, Any]:
    conditions = plan_route(one, plan_route_names([one, *others]), models, NOW)
    assert {item.observed_generation for item in conditions} == {3}
    return {item.type: (item.status.value, item.reason, item.message) for item in conditions}


def test_a_route_with_its_names_and_models_is_accepted_and_resolved() -> None:
    assert said(route("chat"), models=(model("a"),)) == {
        "Accepted": ("True", "Accepted", ""),
        "ResolvedRefs": ("True", "ResolvedRefs", ""),
    }


def test_a_missing_model_is_named_wherever_the_route_names_it() -> None:
    rules = [{"match": {"headers": {"x": "y"}}, "backends": [{"model": "b"}]}]
    status, reason, message = said(
        route("chat", rules=rules, fallbacks=["c"]), models=(model("a"),)
    )["ResolvedRefs"]
    assert (status, reason) == ("False", "BackendNotFound")
    assert message == "there is no Model b; there is no Model c"


def test_an_alias_that_another_route_has_is_a_conflict_of_the_later_one() -> None:
    old = route("old", "2026-01-01T00:00:00Z", aliases=["x"])
    new = route("new", "2026-02-01T00:00:00Z", aliases=["x", "old"])
    status, reason, message = said(new, old)["Accepted"]
    assert (status, reason) == ("False", "NameConflict")
    assert "x belongs to Route old; old belongs to Route old" in message
    assert said(old, new)["Accepted"][0] == "True"


def test_a_name_that_is_a_models_is_told() -> None:
    models = (model("chat"), model("b", "nice"))
    status, reason, message = said(route("chat", aliases=["nice"]), models=models)["Accepted"]
    assert (status, reason) == ("True", "ShadowsModel")
    assert "Model chat" in message
    assert "Model b" in message


def key(name: str = "alice", status: Any = None, **spec: Any) -> ApiKey:
    raw = {
        "kind": "ApiKey",
        "metadata": {"name": name},
        "spec": {"hash": hash_secret("s"), **spec},
        "status": status or {},
    }
    return ApiKey.model_validate_json(json.dumps(raw))


def usable(one: ApiKey, *others: ApiKey) -> tuple[str, str, float | None]:
    plan = plan_key(one, [one, *others], SECONDS)
    found = find_condition(plan.conditions, "Usable")
    assert found is not None
    return found.status.value, found.reason, plan.until_seconds


def test_a_key_says_whether_it_can_be_used_and_until_when() -> None:
    soon = "2026-11-28T13:00:00Z"
    assert usable(key()) == ("True", "Usable", None)
    assert usable(key(disabled=True, expires=soon)) == ("False", "Disabled", None)
    assert usable(key(expires=NOW)) == ("False", "Expired", None)
    assert usable(key(expires=soon)) == ("True", "Usable", parse_time(soon))
    assert usable(key("zoe"), key("bob")) == ("False", "SameSecret", None)
    assert usable(key("bob"), key("zoe")) == ("True", "Usable", None)


def test_a_spent_budget_shows_until_it_begins_anew() -> None:
    usage = {"budgetUsed": 100, "period": "day", "periodStart": "2026-11-28T00:00:00Z"}
    midnight = parse_time("2026-11-29T00:00:00Z")
    budget = {"tokens": 100, "period": "day"}
    assert usable(key(status={"usage": usage}, budget=budget)) == ("False", "BudgetSpent", midnight)
    stale = {**usage, "periodStart": "2026-11-27T00:00:00Z"}
    assert usable(key(status={"usage": stale}, budget=budget)) == ("True", "Usable", midnight)
