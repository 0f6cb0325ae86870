"""The controller's Prometheus metrics: names, labels and what keeps the labels bounded.

Everything is registered with the registry passed in; there is no global. Text that a client
sends never becomes a label: a model that is not declared counts as `other`.
"""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import Receive, Scope, Send

from controller.bound_metrics import Counter, Histogram

OTHER = "other"

_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_STAGE_SECONDS = (0.0001, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800)
_Labelled = Counter | Histogram


class GatewayMetrics:
    """What the OpenAI endpoint counts; all methods belong to one event loop."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register the metrics. Mutates: registry."""
        prefix = "mlxfleet_gateway_"
        self._requests = Counter(
            prefix + "requests",
            "Requests by how they ended",
            ("model", "outcome"),
            registry=registry,
        )
        self._duration = Histogram(
            prefix + "request_duration_seconds",
            "From the request to its end",
            ("model",),
            buckets=_SECONDS,
            registry=registry,
        )
        self._first_data = Histogram(
            prefix + "ttft_seconds",
            "From the request to the first data sent",
            ("model",),
            buckets=_SECONDS,
            registry=registry,
        )
        self._served_now = 0
        in_flight = Gauge(prefix + "in_flight", "Requests being served now", registry=registry)
        in_flight.set_function(lambda: self._served_now)
        self._attempts = Counter(
            prefix + "upstream_attempts",
            "Attempts at agents by how they ended",
            ("node", "outcome"),
            registry=registry,
        )
        self._prompt_tokens = Counter(
            prefix + "prompt_tokens",
            "Prompt tokens as agents reported them",
            ("model",),
            registry=registry,
        )
        self._completion_tokens = Counter(
            prefix + "completion_tokens",
            "Completion tokens as agents reported them",
            ("model",),
            registry=registry,
        )
        self.stages = StageMetrics(registry)
        self._models: frozenset[str] = frozenset()
        self._nodes: frozenset[str] = frozenset()

    def begin_request(self) -> None:
        """Count a request as being served, until it ends."""
        self._served_now += 1

    def end_request(self) -> None:
        """Count it no more."""
        self._served_now -= 1

    def observe_request(self, model: str | None, outcome: str, seconds: float) -> None:
        """Count one request; `model` is the declared model's name, None when there is none."""
        name = self._model(model)
        self._requests.labels(name, outcome).inc()
        self._duration.labels(name).observe(seconds)

    def observe_first_data(self, model: str | None, seconds: float) -> None:
        """Note how long a client waited for the first data."""
        self._first_data.labels(self._model(model)).observe(seconds)

    def count_attempt(self, node: str, outcome: str) -> None:
        """Count one attempt at a node."""
        self._attempts.labels(node if node in self._nodes else OTHER, outcome).inc()

    def count_tokens(self, model: str, prompt_tokens: int, completion_tokens: int) -> None:
        """Add the token counts of one answer; a negative count is none."""
        name = self._model(model)
        self._prompt_tokens.labels(name).inc(max(prompt_tokens, 0))
        self._completion_tokens.labels(name).inc(max(completion_tokens, 0))

    def keep_labels(self, models: frozenset[str], nodes: frozenset[str]) -> None:
        """Take these as the only models and nodes; the series of others go."""
        by_model: tuple[_Labelled, ...] = (
            self._requests,
            self._duration,
            self._first_data,
            self._prompt_tokens,
            self._completion_tokens,
        )
        for name in self._models - models:
            for metric in by_model:
                metric.remove_by_labels({"model": name})
        for name in self._nodes - nodes:
            self._attempts.remove_by_labels({"node": name})
        self._models, self._nodes = models, nodes

    def _model(self, name: str | None) -> str:
        return name if name in self._models and name is not None else OTHER


class StageMetrics:
    """How long each stage of a request takes, who waits, and what the gateway itself refuses.

    `stage`, `outcome` and `reason` are fixed names in the code.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register the metrics. Mutates: registry."""
        prefix = "mlxfleet_gateway_"
        self._seconds = Histogram(
            prefix + "stage_seconds",
            "One stage of a request: tokenize, select, queue or attempt",
            ("stage", "outcome"),
            buckets=_STAGE_SECONDS,
            registry=registry,
        )
        self._depth = Gauge(
            prefix + "queue_depth", "Requests that wait here for room", registry=registry
        )
        self._decisions = Counter(
            prefix + "decisions",
            "Decisions where to send a request, by their reason",
            ("reason",),
            registry=registry,
        )
        self._refusals = Counter(
            prefix + "refusals",
            "Requests that the gateway refused itself",
            ("reason",),
            registry=registry,
        )

    def observe(self, stage: str, outcome: str, seconds: float) -> None:
        """Note one stage of one request."""
        self._seconds.labels(stage, outcome).observe(seconds)

    def set_depth(self, waiting: int) -> None:
        """Note how many wait now."""
        self._depth.set(waiting)

    def count_decision(self, reason: str) -> None:
        """Count one decision."""
        self._decisions.labels(reason).inc()

    def count_refusal(self, reason: str) -> None:
        """Count one refusal: too_large, queue_full, queue_expired or no_engine."""
        self._refusals.labels(reason).inc()


class PromptMetrics:
    """How prompts are counted, and how much is known of cached prefixes."""

    def __init__(self, registry: CollectorRegistry, stages: StageMetrics) -> None:
        """Register the metrics. Mutates: registry."""
        prefix = "mlxfleet_gateway_"
        self._stages = stages
        self._prompts = Counter(
            prefix + "prompts",
            "Prompts by how they were counted: counted, repeat, estimated; mismatch: the node had "
            "another count",
            ("outcome",),
            registry=registry,
        )
        self._processes = Gauge(
            prefix + "tokenizer_processes", "Tokenizer processes that run", registry=registry
        )
        self._names = Gauge(
            prefix + "prefix_names", "Names of cached prefixes known of nodes", registry=registry
        )
        self._dropped = Counter(
            prefix + "prefix_names_dropped",
            "Names of cached prefixes there was no room for",
            registry=registry,
        )

    def count(self, outcome: str) -> None:
        """Count one prompt, or one wrong count."""
        self._prompts.labels(outcome).inc()

    def observe(self, outcome: str, seconds: float) -> None:
        """Count one prompt and note how long that took."""
        self.count(outcome)
        self._stages.observe("tokenize", outcome, seconds)

    def set_sizes(self, processes: int, names: int) -> None:
        """Note how much there is now."""
        self._processes.set(processes)
        self._names.set(names)

    def count_dropped_names(self, count: int) -> None:
        """Count names that were left out."""
        self._dropped.inc(count)


class EndpointCollector(Collector):
    """How many endpoints accept requests, read at every scrape so that no series outlives them."""

    def __init__(self, accepting: Callable[[], Mapping[str, int]]) -> None:
        """`accepting` returns the count for each model."""
        self._accepting = accepting

    def describe(self) -> Iterable[Metric]:
        """Return the metric without samples."""
        return [self._family()]

    def collect(self) -> Iterable[Metric]:
        """Return one sample for each model."""
        family = self._family()
        for model, count in sorted(self._accepting().items()):
            family.add_metric([model], count)
        return [family]

    def _family(self) -> GaugeMetricFamily:
        return GaugeMetricFamily(
            "mlxfleet_gateway_endpoints_accepting",
            "Engines that accept requests now",
            labels=["model"],
        )


class ReconcileMetrics:
    """What the reconcilers count; `controller` is a fixed name of one of them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register the metrics. Mutates: registry."""
        self._passes = Counter(
            "mlxfleet_controller_reconciles",
            "Reconcile passes by how they ended",
            ("controller", "outcome"),
            registry=registry,
        )
        self._duration = Histogram(
            "mlxfleet_controller_reconcile_duration_seconds",
            "One reconcile pass",
            ("controller",),
            buckets=_SECONDS,
            registry=registry,
        )

    def observe_pass(self, controller: str, outcome: str, seconds: float) -> None:
        """Count one pass; `outcome` is `ok` or `fault`."""
        self._passes.labels(controller, outcome).inc()
        self._duration.labels(controller).observe(seconds)


class MetricsPage:
    """`GET /metrics` as an ASGI application."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Serve what is in `registry`."""
        self._registry = registry

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """Answer in the format that the scraper asks for."""
        headers = dict(scope["headers"])
        encoder, content_type = choose_encoder(headers.get(b"accept", b"").decode("latin-1"))
        body = encoder(self._registry)
        head = [
            (b"content-type", content_type.encode("ascii")),
            (b"content-length", str(len(body)).encode("ascii")),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": body})
