"""The registry of kinds: names on the wire, classes, and the columns that tables show."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from manifests.kinds.api_key import ApiKey
from manifests.kinds.cache_budget import CacheBudget
from manifests.kinds.engine import Engine
from manifests.kinds.event import Event
from manifests.kinds.guard import MemoryGuard
from manifests.kinds.meta import FleetObject
from manifests.kinds.model import Model
from manifests.kinds.node import Node
from manifests.kinds.route import Route


@dataclass(frozen=True, slots=True)
class Kind:
    """How one kind is named on the wire and which class validates it."""

    name: str
    plural: str
    singular: str
    short_names: tuple[str, ...]
    model: type[FleetObject]
    declared_by_users: bool = True
    has_status: bool = True


KINDS: tuple[Kind, ...] = (
    Kind("Model", "models", "model", ("mdl",), Model),
    Kind("Route", "routes", "route", ("rt",), Route),
    Kind("MemoryGuard", "memoryguards", "memoryguard", ("mg",), MemoryGuard),
    Kind("CacheBudget", "cachebudgets", "cachebudget", ("cb",), CacheBudget),
    Kind("ApiKey", "apikeys", "apikey", ("key", "keys"), ApiKey),
    Kind("Node", "nodes", "node", ("nd",), Node),
    Kind("Engine", "engines", "engine", ("eng",), Engine, declared_by_users=False),
    Kind("Event", "events", "event", ("ev",), Event, declared_by_users=False, has_status=False),
)

BY_NAME: Mapping[str, Kind] = {kind.name: kind for kind in KINDS}
BY_PLURAL: Mapping[str, Kind] = {kind.plural: kind for kind in KINDS}


def resolve_kind(word: str) -> Kind | None:
    """Return the kind that a plural, singular, short or Kind name means, in any case; or None."""
    folded = word.lower()
    for kind in KINDS:
        if folded in {kind.plural, kind.singular, kind.name.lower(), *kind.short_names}:
            return kind
    return None


def parse_object(raw: Mapping[str, Any]) -> FleetObject:
    """Return the typed object of a JSON-shaped mapping.

    Raises: KeyError for an unknown kind; pydantic.ValidationError listing every field error.
    """
    # Strict JSON mode: text never becomes a number, yet arrays may become tuples.
    return BY_NAME[raw["kind"]].model.model_validate_json(json.dumps(raw))


def dump_object(obj: FleetObject) -> dict[str, Any]:
    """Return the JSON-shaped mapping of an object, defaults included and nulls left out."""
    return obj.model_dump(mode="json", by_alias=True, exclude_none=True)
