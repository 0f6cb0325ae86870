"""What the conditions of a Route say: whether it has its names, and whether its Models exist.

Pure. The conditions are those of the Gateway API. Called by `reconcile.route`.
"""

from collections.abc import Collection, Mapping

from manifests.kinds.meta import Condition, ConditionStatus, set_condition
from manifests.kinds.model import Model
from manifests.kinds.route import Route

ACCEPTED, RESOLVED_REFS = "Accepted", "ResolvedRefs"
_MOST_NAMES = 3


def plan_route(
    route: Route, owners: Mapping[str, Route], models: Collection[Model], now: str
) -> tuple[Condition, ...]:
    """Return the conditions of a route.

    `owners` is who has each public name; `now` an RFC 3339 time.
    """
    conditions = route.status.conditions
    for condition in (_accepted(route, owners, models), _resolved(route, models)):
        seen = condition.model_copy(update={"observed_generation": route.metadata.generation or 0})
        conditions = set_condition(conditions, seen, now)
    return conditions


def _accepted(route: Route, owners: Mapping[str, Route], models: Collection[Model]) -> Condition:
    name = str(route.metadata.name)
    lost = [
        f"{alias} belongs to Route {owners[alias].metadata.name}"
        for alias in route.spec.aliases
        if alias in owners and owners[alias].metadata.name != name
    ]
    if lost:
        message = _some(lost) + "; rename or remove the alias"
        return _condition(ACCEPTED, ConditionStatus.FALSE, "NameConflict", message)
    taken = {str(item.metadata.name): str(item.metadata.name) for item in models}
    for item in models:
        for alias in item.spec.aliases:
            taken.setdefault(alias, str(item.metadata.name))
    shadowed = [
        f"requests for {own} go by this Route and not straight to Model {taken[own]}"
        for own in (name, *route.spec.aliases)
        if own in taken
    ]
    if shadowed:
        return _condition(ACCEPTED, ConditionStatus.TRUE, "ShadowsModel", _some(shadowed))
    return _condition(ACCEPTED, ConditionStatus.TRUE, ACCEPTED, "")


def _resolved(route: Route, models: Collection[Model]) -> Condition:
    known = {str(item.metadata.name) for item in models}
    missing = [f"there is no Model {name}" for name in route.spec.model_names if name not in known]
    if missing:
        return _condition(RESOLVED_REFS, ConditionStatus.FALSE, "BackendNotFound", _some(missing))
    return _condition(RESOLVED_REFS, ConditionStatus.TRUE, RESOLVED_REFS, "")


def _some(parts: list[str]) -> str:
    more = len(parts) - _MOST_NAMES
    return "; ".join(parts[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _condition(type_: str, status: ConditionStatus, reason: str, message: str) -> Condition:
    return Condition(type=type_, status=status, reason=reason, message=message)
