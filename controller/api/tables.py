"""Objects as the Table that `kubectl get` prints. Pure."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from controller.api.columns import COLUMNS, Column
from manifests.kinds.scheme import Kind
from manifests.wire.listwatch import RawObject

_META_VERSION = "meta.k8s.io/v1"


class IncludeObject(StrEnum):
    """How much of each object a row carries."""

    NONE = "None"
    METADATA = "Metadata"
    OBJECT = "Object"


def render_table(
    kind: Kind,
    objects: Iterable[RawObject],
    now: float,
    include: IncludeObject,
    *,
    headers: bool = True,
) -> dict[str, Any]:
    """Return the Table of some objects; `now` is in seconds since the epoch."""
    columns = COLUMNS[kind.name]
    return {
        "kind": "Table",
        "apiVersion": _META_VERSION,
        "metadata": {},
        "columnDefinitions": [_definition(column) for column in columns] if headers else [],
        "rows": [_row(columns, item, now, include) for item in objects],
    }


def _definition(column: Column) -> dict[str, Any]:
    return {
        "name": column.name,
        "type": column.type,
        "format": column.format,
        "description": column.description,
        "priority": column.priority,
    }


def _row(
    columns: Iterable[Column], obj: RawObject, now: float, include: IncludeObject
) -> dict[str, Any]:
    row: dict[str, Any] = {"cells": [column.read(obj, now) for column in columns]}
    if include is IncludeObject.OBJECT:
        row["object"] = obj
    elif include is IncludeObject.METADATA:
        row["object"] = {
            "kind": "PartialObjectMetadata",
            "apiVersion": _META_VERSION,
            "metadata": obj["metadata"],
        }
    return row
