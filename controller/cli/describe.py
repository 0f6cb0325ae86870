"""One object as a person reads it at a glance, with its events. Pure but for the age of things."""

import time
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from controller.cli.describe_node import SHOWN, node_engine_rows, node_memory_lines
from controller.cli.output import align
from manifests.times import parse_time
from manifests.units import format_bytes, format_duration

_MOST_NODE_EVENTS = 20


def describe_lines(
    obj: Mapping[str, Any],
    events: Iterable[Mapping[str, Any]],
    engines: Iterable[Mapping[str, Any]] = (),
) -> list[str]:
    """Return the description of one object; a node's events tell of its engines too."""
    metadata, now, is_node = obj["metadata"], time.time(), obj["kind"] == "Node"
    lines = [
        f"Name:         {metadata['name']}",
        f"Kind:         {obj['kind']}",
        f"Created:      {_when(metadata.get('creationTimestamp', ''), now)}",
    ]
    lines += _mapping("Labels:      ", metadata.get("labels"))
    lines += _mapping("Annotations: ", _without_bookkeeping(metadata.get("annotations")))
    if metadata.get("deletionTimestamp"):
        lines.append(f"Deleting:     since {_when(metadata['deletionTimestamp'], now)}")
    status = dict(obj.get("status") or {})
    conditions = status.pop("conditions", None) or []
    related = list(engines)
    if is_node:
        lines += node_memory_lines(status)
        status = {key: value for key, value in status.items() if key not in SHOWN}
        if related:
            lines += ["", "Engines:", *_indent(node_engine_rows(related))]
    if obj.get("spec"):
        lines += ["", "Spec:", *_yaml(obj["spec"])]
    if status:
        lines += ["", "Status:", *_yaml(_readable(status))]
    if conditions:
        lines += ["", "Conditions:", *_condition_lines(conditions, now)]
    if is_node:
        return lines + _event_lines(list(events), now, with_object=True)
    lines += _engine_lines(related)
    return lines + _event_lines(list(events), now)


def is_about(event: Mapping[str, Any], uid: str, node: str) -> bool:
    """Whether an event is a node's: about its object, or told by its agent."""
    if (event.get("involvedObject") or {}).get("uid") == uid:
        return True
    return bool((event.get("source") or {}).get("host") == node)


def _condition_lines(conditions: Iterable[Mapping[str, Any]], now: float) -> list[str]:
    rows = [
        [
            item.get("type", ""),
            item.get("status", ""),
            item.get("reason", ""),
            _age(item.get("lastTransitionTime", ""), now),
            item.get("message", ""),
        ]
        for item in conditions
    ]
    return _indent(align(["TYPE", "STATUS", "REASON", "SINCE", "MESSAGE"], rows))


def _engine_lines(engines: list[Mapping[str, Any]]) -> list[str]:
    if not engines:
        return []
    rows = []
    for engine in engines:
        status = engine.get("status") or {}
        footprint = int(status.get("footprintBytes", 0))
        rows.append(
            [
                engine["metadata"]["name"],
                engine["spec"]["model"],
                engine["spec"]["node"],
                status.get("phase", ""),
                str(status.get("restarts", 0)),
                format_bytes(footprint) if footprint else "-",
                status.get("message", ""),
            ]
        )
    header = ["ENGINE", "MODEL", "NODE", "PHASE", "RESTARTS", "FOOTPRINT", "MESSAGE"]
    return ["", "Engines:", *_indent(align(header, rows))]


def _event_lines(
    events: list[Mapping[str, Any]], now: float, *, with_object: bool = False
) -> list[str]:
    if not events:
        return ["", "Events:       none"]
    latest = sorted(events, key=lambda item: item.get("lastTimestamp", ""))
    rows = []
    for event in latest[-_MOST_NODE_EVENTS:] if with_object else latest:
        count = int(event.get("count", 1))
        age = _age(event.get("lastTimestamp", ""), now)
        first = _age(event.get("firstTimestamp", ""), now)
        about = event.get("involvedObject") or {}
        rows.append(
            [
                event.get("type", ""),
                event.get("reason", ""),
                age if count == 1 else f"{age} (x{count} over {first})",
                f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}"
                if with_object
                else (event.get("source") or {}).get("component", ""),
                event.get("message", ""),
            ]
        )
    where = "OBJECT" if with_object else "FROM"
    return ["", "Events:", *_indent(align(["TYPE", "REASON", "AGE", where, "MESSAGE"], rows))]


def _readable(value: Any, key: str = "") -> Any:
    """Replace byte counts by what people read; the exact figures are in -o yaml."""
    if isinstance(value, Mapping):
        return {name: _readable(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [_readable(item) for item in value]
    if key.lower().endswith("bytes") and isinstance(value, int):
        return format_bytes(value)
    return round(value, 2) if isinstance(value, float) else value


def _without_bookkeeping(annotations: Mapping[str, str] | None) -> dict[str, str]:
    kept = annotations or {}
    return {k: v for k, v in kept.items() if not k.endswith("last-applied-configuration")}


def _mapping(title: str, values: Mapping[str, str] | None) -> list[str]:
    if not values:
        return []
    pairs = [f"{key}={value}" for key, value in sorted(values.items())]
    return [f"{title if i == 0 else ' ' * len(title)} {pair}" for i, pair in enumerate(pairs)]


def _yaml(value: Any) -> list[str]:
    text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100)
    return _indent(text.rstrip().split("\n"))


def _indent(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _when(stamp: str, now: float) -> str:
    return f"{stamp} ({_age(stamp, now)} ago)" if stamp else "unknown"


def _age(stamp: str, now: float) -> str:
    seconds = parse_time(stamp)
    return "-" if seconds is None else format_duration(now - seconds)
