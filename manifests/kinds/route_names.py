"""Who has each public name; pure.

The gateway routes by it and the reconciler of routes reports it, so both say the same.
"""

from collections.abc import Iterable, Mapping

from manifests.kinds.route import Route


def plan_route_names(routes: Iterable[Route]) -> Mapping[str, Route]:
    """Return the route behind each public name.

    A route's own name beats an alias; of two routes with one alias the older has it, then the
    first by name. Routes that are being deleted have none.
    """
    live = [item for item in routes if item.metadata.deletion_timestamp is None]
    ordered = sorted(live, key=lambda item: (item.metadata.creation_timestamp or "", _name(item)))
    names = {_name(item): item for item in ordered}
    for item in ordered:
        for alias in item.spec.aliases:
            names.setdefault(alias, item)
    return names


def _name(route: Route) -> str:
    return str(route.metadata.name)
