"""What the gateway counts by API key: exact, and only for keys that are declared.

Called by the gateway's door. A key that is no longer declared loses its series, and counts as
`other` until its last request has ended.
"""

from prometheus_client import CollectorRegistry

from controller.bound_metrics import Counter
from controller.metrics import OTHER


class KeyMetrics:
    """Counters by key name; all methods belong to one event loop."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register the metrics. Mutates: registry."""
        prefix = "mlxfleet_gateway_key_"
        self._requests = Counter(
            prefix + "requests",
            "Requests let in, by how they ended",
            ("key", "outcome"),
            registry=registry,
        )
        self._refused = Counter(
            prefix + "refused",
            "Requests that a limit or a budget refused",
            ("key", "code"),
            registry=registry,
        )
        self._tokens = Counter(
            prefix + "tokens",
            "Tokens used; kind is prompt or completion",
            ("key", "kind"),
            registry=registry,
        )
        self._names: frozenset[str] = frozenset()

    def count_served(
        self, key: str, outcome: str, prompt_tokens: int, completion_tokens: int
    ) -> None:
        """Count one request that was let in, at its end."""
        name = self._label(key)
        self._requests.labels(name, outcome).inc()
        self._tokens.labels(name, "prompt").inc(max(prompt_tokens, 0))
        self._tokens.labels(name, "completion").inc(max(completion_tokens, 0))

    def count_refused(self, key: str, code: str) -> None:
        """Count one request that a limit refused; `code` is one of a fixed set."""
        self._refused.labels(self._label(key), code).inc()

    def keep_labels(self, names: frozenset[str]) -> None:
        """Take these as the only keys; the series of others go."""
        for name in self._names - names:
            for metric in (self._requests, self._refused, self._tokens):
                metric.remove_by_labels({"key": name})
        self._names = names

    def _label(self, key: str) -> str:
        return key if key in self._names else OTHER
