"""Metric names, bounded labels, and a gauge that comes back to zero (B89, B90)."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from controller.metrics import EndpointCollector, GatewayMetrics, MetricsPage, ReconcileMetrics


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def test_names_have_their_prefixes_and_parse(registry: CollectorRegistry) -> None:
    metrics = GatewayMetrics(registry)
    ReconcileMetrics(registry).observe_pass("placement", "ok", 0.1)
    registry.register(EndpointCollector(lambda: {'quo"te\n': 2}))
    metrics.observe_request("m", "ok", 1.0)
    families = list(text_string_to_metric_families(generate_latest(registry).decode()))
    prefixes = ("mlxfleet_gateway_", "mlxfleet_controller_")
    assert all(item.name.startswith(prefixes) for item in families)
    accepting = next(item for item in families if item.name.endswith("endpoints_accepting"))
    assert accepting.samples[0].labels == {"model": 'quo"te\n'}


def test_only_declared_models_and_nodes_become_labels(registry: CollectorRegistry) -> None:
    metrics = GatewayMetrics(registry)
    metrics.keep_labels(frozenset({"m"}), frozenset({"n"}))
    for name in ("m", "junk-1", "junk-2", None):
        metrics.observe_request(name, "ok", 1.0)
        metrics.observe_first_data(name, 1.0)
    metrics.count_attempt("n", "ok")
    metrics.count_attempt("gone", "ok")
    text = generate_latest(registry).decode()
    assert "junk" not in text
    assert "gone" not in text
    count = registry.get_sample_value
    assert count("mlxfleet_gateway_requests_total", {"model": "m", "outcome": "ok"}) == 1
    assert count("mlxfleet_gateway_requests_total", {"model": "other", "outcome": "ok"}) == 3


def test_series_go_with_their_model_and_node_and_do_not_come_back(
    registry: CollectorRegistry,
) -> None:
    metrics = GatewayMetrics(registry)
    metrics.keep_labels(frozenset({"m", "k"}), frozenset({"n"}))
    for model in ("m", "k"):
        metrics.observe_request(model, "ok", 1.0)
        metrics.count_tokens(model, 1, 1)
    metrics.count_attempt("n", "ok")
    metrics.keep_labels(frozenset({"k"}), frozenset())
    metrics.observe_request("m", "ok", 1.0)
    metrics.count_attempt("n", "ok")
    text = generate_latest(registry).decode()
    assert 'model="m"' not in text
    assert 'node="n"' not in text
    assert 'model="k"' in text


def test_requests_are_in_flight_from_their_begin_to_their_end(registry: CollectorRegistry) -> None:
    metrics = GatewayMetrics(registry)
    metrics.begin_request()
    metrics.begin_request()
    assert registry.get_sample_value("mlxfleet_gateway_in_flight") == 2
    metrics.end_request()
    metrics.end_request()
    assert registry.get_sample_value("mlxfleet_gateway_in_flight") == 0


def test_a_negative_token_count_does_not_break_a_counter(registry: CollectorRegistry) -> None:
    metrics = GatewayMetrics(registry)
    metrics.count_tokens("m", -5, 3)
    assert (
        registry.get_sample_value("mlxfleet_gateway_prompt_tokens_total", {"model": "other"}) == 0
    )


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [(b"", b"text/plain"), (b"application/openmetrics-text", b"application/openmetrics-text")],
)
async def test_the_page_speaks_the_scrapers_format(
    registry: CollectorRegistry, accept: bytes, content_type: bytes
) -> None:
    sent: list[dict[str, object]] = []

    async def send(message: object) -> None:
        assert isinstance(message, dict)
        sent.append(message)

    async def receive() -> dict[str, object]:
        return {"type": "http.request"}

    page = MetricsPage(registry)
    await page({"type": "http", "headers": [(b"accept", accept)]}, receive, send)  # type: ignore[arg-type]
    headers = dict(sent[0]["headers"])  # type: ignore[call-overload]
    assert headers[b"content-type"].startswith(content_type)


def test_each_stage_has_its_seconds_and_the_line_its_depth(registry: CollectorRegistry) -> None:
    stages = GatewayMetrics(registry).stages
    stages.observe("queue", "served", 2.0)
    stages.set_depth(3)
    stages.count_decision("fits")
    stages.count_refusal("too_large")
    labels = {"stage": "queue", "outcome": "served"}
    read = registry.get_sample_value
    assert read("mlxfleet_gateway_stage_seconds_sum", labels) == 2.0
    assert read("mlxfleet_gateway_queue_depth") == 3
    assert read("mlxfleet_gateway_decisions_total", {"reason": "fits"}) == 1
    assert read("mlxfleet_gateway_refusals_total", {"reason": "too_large"}) == 1
