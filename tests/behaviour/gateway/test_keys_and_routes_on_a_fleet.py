"""Keys and routes on real processes: two gateways, one agent, two tiny models."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import yaml

from manifests.kinds.api_key import hash_secret
from tests.support.fleet import ROOT, Fleet, condition, eventually, running_fleet
from tests.support.tiny_models import tiny_model

pytestmark = pytest.mark.processes

ASK = {"prompt": "one two three", "temperature": 0, "extra_body": {"ignore_eos": True}}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("fleet")) as running:
        running.serve("tiny", tiny_model("llama"))
        running.serve("smollm2", tiny_model("qwen3"))
        running.start_gateway()
        yield running


@pytest.fixture(scope="module")
def secret(fleet: Fleet) -> str:
    """The secret of a key without limits, so that every request of this file needs one."""
    made = mlxctl(fleet, "create", "key", "alice", "--priority", "5")
    assert made.returncode == 0, made.stderr
    for url in (fleet.url, fleet.gateways["gateway"].url):
        eventually(lambda url=url: is_refused(url), "the gateway asks for keys")
    return made.stdout.strip()


def mlxctl(fleet: Fleet, *words: str, stdin: str | None = None) -> Any:
    return subprocess.run(
        [sys.executable, "-m", "controller.cli", *words],
        cwd=ROOT,
        env={**os.environ, "MLXCTL_SERVER": fleet.url, "NO_COLOR": "1", "COLUMNS": "200"},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def client(url: str, secret: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=url + "/v1", api_key=secret, max_retries=0, timeout=90)


def is_refused(url: str) -> bool:
    with client(url, "nobody") as nobody:
        try:
            nobody.models.list()
        except openai.AuthenticationError:
            return True
    return False


def usage(fleet: Fleet, name: str) -> dict[str, Any]:
    found = fleet.find("apikeys", name)
    assert found is not None
    return dict(found["status"].get("usage") or {})


def test_a_secret_is_shown_once_and_stored_nowhere(fleet: Fleet, secret: str) -> None:
    stored = fleet.find("apikeys", "alice")
    assert stored is not None
    assert stored["spec"]["hash"] == hash_secret(secret)
    assert (secret[:5], stored["spec"]["prefix"]) == ("mlxf-", secret[:8])
    again = mlxctl(fleet, "create", "key", "alice")
    assert (again.returncode, again.stdout) == (4, "")
    eventually(lambda: condition(fleet.find("apikeys", "alice"), "Usable") == "True", "usable")
    shown = mlxctl(fleet, "get", "keys").stdout + mlxctl(fleet, "describe", "key", "alice").stdout
    assert "alice" in shown
    assert "Usable" in shown
    for path in fleet.directory.rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes(), path


def test_a_manifest_with_a_plain_secret_is_refused_with_the_fix(
    fleet: Fleet, tmp_path: Path
) -> None:
    raw = {
        "apiVersion": "mlxfleet.dev/v1alpha1",
        "kind": "ApiKey",
        "metadata": {"name": "eve"},
        "spec": {"hash": hash_secret("x"), "secret": "mlxf-plain"},
    }
    (tmp_path / "key.yaml").write_text(yaml.safe_dump(raw))
    applied = mlxctl(fleet, "apply", "-f", str(tmp_path / "key.yaml"))
    assert applied.returncode == 1
    assert "spec.secret" in applied.stderr
    assert "mlxctl create key NAME" in " ".join(applied.stderr.split())
    assert "mlxf-plain" not in applied.stderr
    assert fleet.find("apikeys", "eve") is None


def test_usage_is_right_on_two_gateways_streamed_or_not_and_for_one_that_leaves(
    fleet: Fleet, secret: str
) -> None:
    made = mlxctl(fleet, "create", "key", "bob", "--models", "ti*,route-*", "--tpm", "100000")
    mine = made.stdout.strip()
    second = fleet.gateways["gateway"]
    eventually(lambda: can_list(second.url, mine) and can_list(fleet.url, mine), "the key is known")
    total = Counter()
    with client(fleet.url, mine) as first, client(second.url, mine) as other:
        assert [item.id for item in first.models.list().data] == ["tiny"]
        with pytest.raises(openai.PermissionDeniedError):
            first.completions.create(model="smollm2", **ASK)
        for gateway in (first, other):
            answer = gateway.completions.create(model="tiny", max_tokens=6, **ASK)
            assert answer.usage is not None
            assert answer.usage.completion_tokens == 6
            one = {"requests": 1, "prompt": answer.usage.prompt_tokens, "completion": 6}
            total.update(one)
            list(gateway.completions.create(model="tiny", max_tokens=6, stream=True, **ASK))
            total.update(one)
        total.update({"requests": 1, "prompt": one["prompt"]})
        left = other.completions.create(model="tiny", max_tokens=3000, stream=True, **ASK)
        for _, _ in zip(range(4), left, strict=False):
            pass
        left.close()
    # Both write what they have at their end; the second one before the first.
    assert second.stop() == 0
    seen = usage(fleet, "bob")
    assert seen["requests"] >= 3
    restart_controller(fleet)
    seen = usage(fleet, "bob")
    assert (seen["requests"], seen["promptTokens"]) == (total["requests"], total["prompt"])
    # Four events of at least one token each, and what was on its way.
    assert 4 <= seen["completionTokens"] - total["completion"] < 3000


def can_list(url: str, secret: str) -> bool:
    with client(url, secret) as one:
        try:
            return bool(one.models.list())
        except openai.AuthenticationError:
            return False


def restart_controller(fleet: Fleet) -> None:
    assert fleet.controller.stop() == 0
    fleet.controller.start()
    eventually(fleet.controller.answers, "the controller is back")
    eventually(lambda: is_refused(fleet.url), "the gateway is back")


def test_a_budget_goes_on_after_a_restart(fleet: Fleet, secret: str) -> None:
    poor = "mlxf-poor"
    spec = {"hash": hash_secret(poor), "budget": {"tokens": 60, "period": "month"}}
    fleet.apply({"kind": "ApiKey", "metadata": {"name": "poor"}, "spec": spec})
    eventually(lambda: can_list(fleet.url, poor), "the key is known")
    with client(fleet.url, poor) as one:

        def spend() -> bool:
            try:
                one.completions.create(model="tiny", max_tokens=20, **ASK)
            except openai.RateLimitError as refused:
                assert refused.code == "insufficient_quota"
                return True
            except openai.InternalServerError:
                # After the restart above the node may not be known yet.
                pass
            return False

        eventually(spend, "the budget is spent")
    restart_controller(fleet)
    spent = usage(fleet, "poor")["budgetUsed"]
    assert 40 < spent <= 60
    with client(fleet.url, poor) as one, pytest.raises(openai.RateLimitError) as refused:
        one.completions.create(model="tiny", max_tokens=60 - spent, **ASK)
    assert refused.value.code == "insufficient_quota"


def test_prefixes_of_an_isolated_key_are_its_own(fleet: Fleet, secret: str) -> None:
    for name, isolation in (
        ("red", "tenant"),
        ("blue", "tenant"),
        ("grey", None),
        ("pink", "shared"),
    ):
        spec = {"hash": hash_secret(f"mlxf-{name}"), "cacheIsolation": isolation}
        spec = {key: value for key, value in spec.items() if value is not None}
        fleet.apply({"kind": "ApiKey", "metadata": {"name": name}, "spec": spec})
    eventually(lambda: can_list(fleet.url, "mlxf-pink"), "the keys are known")

    def cached(name: str, prompt: str) -> int:
        with client(fleet.url, f"mlxf-{name}") as one:
            answer = one.completions.create(model="tiny", max_tokens=1, prompt=prompt)
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        return answer.usage.prompt_tokens_details.cached_tokens or 0

    prompt = "the quick brown fox jumps over the lazy dog " * 12
    assert cached("red", prompt) == 0
    eventually(lambda: cached("red", prompt), "its own prefix is cached")
    assert cached("blue", prompt) == 0
    assert cached("grey", prompt) == 0
    eventually(lambda: cached("pink", prompt), "what others shared is cached")


def test_the_examples_route_serves_under_names_that_no_agent_heard(
    fleet: Fleet, secret: str
) -> None:
    applied = mlxctl(fleet, "apply", "-f", "examples/keys-and-routes")
    assert applied.returncode == 0, applied.stderr

    def told() -> bool:
        found = fleet.find("routes", "assistant")
        return (condition(found, "Accepted"), condition(found, "ResolvedRefs")) == ("True", "False")

    eventually(told, "the route says that a model is missing")
    described = mlxctl(fleet, "describe", "rt", "assistant").stdout
    assert "there is no Model smollm2-canary" in described
    listed = mlxctl(fleet, "get", "routes").stdout
    assert "smollm2=90/100,smollm2-canary=10/100" in listed
    assert "BackendNotFound" in listed
    with client(fleet.url, secret) as one:
        eventually(lambda: "gpt-4o-mini" in {item.id for item in one.models.list()}, "it is listed")
        for name, headers in (("assistant", {}), ("gpt-4o-mini", {"x-canary": "yes"})):
            raw = one.completions.with_raw_response.create(
                model=name, max_tokens=3, extra_headers=headers, **ASK
            )
            assert raw.headers["x-mlxfleet-model"] == "smollm2"
            assert raw.parse().model == name
        events = list(one.completions.create(model="assistant", max_tokens=3, stream=True, **ASK))
        assert {item.model for item in events} == {"assistant"}
    flags = ("--models", "assistant", "--rpm", "60", "--budget", "1M/day", "--expires", "1d")
    made = mlxctl(fleet, "create", "key", "guest", *flags)
    guest = made.stdout.strip()
    eventually(lambda: can_list(fleet.url, guest), "the key is known")
    words = ("chat", "assistant", "hello", "--max-tokens", "3")
    answer = mlxctl(fleet, "--api-key", guest, *words)
    assert answer.returncode == 0, answer.stderr
    refused = mlxctl(fleet, *words)
    assert refused.returncode != 0
    assert "API key" in refused.stderr
