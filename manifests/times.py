"""Times on the wire: RFC 3339 in UTC, as Kubernetes writes them."""

from datetime import UTC, datetime


def format_time(epoch_seconds: float) -> str:
    """Return an RFC 3339 time to the second."""
    return datetime.fromtimestamp(epoch_seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def format_micro_time(epoch_seconds: float) -> str:
    """Return an RFC 3339 time to the microsecond, for leases."""
    return datetime.fromtimestamp(epoch_seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_time(text: str) -> float | None:
    """Return seconds since the epoch, or None for an empty or unreadable time."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
