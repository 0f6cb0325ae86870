"""Which Events are old enough to go. Pure; `event_pruner.py` carries it out."""

from collections.abc import Sequence

from manifests.times import parse_time
from manifests.wire.listwatch import RawObject

EVENT_SECONDS = 3600.0
EVENT_COUNT = 1000


def plan_event_prune(
    events: Sequence[RawObject],
    now: float,
    *,
    keep_seconds: float = EVENT_SECONDS,
    keep_count: int = EVENT_COUNT,
) -> tuple[str, ...]:
    """Return the names of Events to delete: too old, or beyond the newest so many."""
    newest_first = sorted(events, key=_last_seen, reverse=True)
    return tuple(
        str(event["metadata"]["name"])
        for index, event in enumerate(newest_first)
        if index >= keep_count or _last_seen(event) < now - keep_seconds
    )


def _last_seen(event: RawObject) -> float:
    metadata = event["metadata"]
    for text in (event.get("lastTimestamp"), metadata.get("creationTimestamp")):
        seen = parse_time(text) if isinstance(text, str) else None
        if seen is not None:
            return seen
    return 0.0
