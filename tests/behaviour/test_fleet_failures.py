"""What clients see when a part of a running fleet is killed. Real processes, a tiny real model."""

import threading
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import psutil
import pytest

from tests.support.fleet import Fleet, condition, eventually, running_fleet
from tests.support.tiny_models import tiny_model

pytestmark = pytest.mark.processes

LONG: dict[str, Any] = {"temperature": 0, "extra_body": {"ignore_eos": True}}
# Slow enough on two cores that a stream outlives a restart, without starving the machine.
UNHURRIED: dict[str, Any] = {"hidden": 384, "layers": 12}
MESSAGES: list[Any] = [{"role": "user", "content": "count for a long time"}]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("fleet")) as running:
        yield running


@pytest.fixture(autouse=True)
def _nothing_is_left(fleet: Fleet) -> Iterator[None]:
    yield
    for model in fleet.api.list("models")["items"]:
        fleet.delete_model(model["metadata"]["name"])


def still_alive(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    """The processes that run after a while; one that waits to be reaped by init has ended."""
    _gone, alive = psutil.wait_procs(processes, timeout=seconds)
    return [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=60)


def ask(url: str, **options: Any) -> Any:
    with client(url) as api:
        return api.chat.completions.create(**options)


def answers(url: str, model: str) -> bool:
    try:
        reply = ask(url, model=model, messages=MESSAGES, max_tokens=3)
    except openai.APIStatusError as refused:
        assert refused.status_code == 503, refused
        return False
    return reply.choices[0].finish_reason in {"length", "stop"}


def is_unknown(url: str, model: str) -> bool:
    try:
        ask(url, model=model, messages=MESSAGES, max_tokens=1)
    except openai.NotFoundError:
        return True
    except openai.InternalServerError as refused:
        assert refused.status_code == 503, refused
    return False


def served(url: str) -> set[str]:
    with client(url) as api:
        return {model.id for model in api.models.list()}


class Stream:
    """A stream read in a thread: how far it is, and how it ended."""

    def __init__(self, url: str, model: str, max_tokens: int = 3500) -> None:
        self.pieces = 0
        self.finish_reason: str | None = None
        self.error: Exception | None = None
        self.first = threading.Event()
        self._left = threading.Event()
        self._url, self._model, self._max_tokens = url, model, max_tokens
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            with client(self._url) as api:
                chunks = api.chat.completions.create(
                    model=self._model,
                    messages=MESSAGES,
                    stream=True,
                    max_tokens=self._max_tokens,
                    **LONG,
                )
                for chunk in chunks:
                    for choice in chunk.choices:
                        self.finish_reason = choice.finish_reason or self.finish_reason
                        self.pieces += bool(choice.delta.content)
                    if self.pieces >= 3:
                        self.first.set()
                    if self._left.is_set():
                        return
        except Exception as error:  # noqa: BLE001 - shown by the test that reads it
            self.error = error
        finally:
            self.first.set()

    def running(self) -> "Stream":
        assert self.first.wait(60), "no token came"
        assert self.error is None, self.error
        assert self._thread.is_alive(), "the stream is over too early"
        return self

    def leave(self) -> None:
        """Hang up, as a client does that has heard enough."""
        self._left.set()
        self._thread.join(30)

    def ended(self, seconds: float = 30) -> "Stream":
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "the stream did not end"
        return self


def warned_about(fleet: Fleet) -> set[str]:
    events = fleet.api.list("events")["items"]
    return {e["involvedObject"]["name"] for e in events if e["type"] == "Warning"}


def engine_pid(fleet: Fleet, model: str) -> int:
    def pid() -> int | None:
        engines = fleet.engines(model)
        ready = engines and engines[0]["status"]["phase"] == "Ready"
        return engines[0]["status"].get("pid") if ready else None

    found: int = eventually(pid, f"an engine of {model} reports its pid")
    return found


def test_a_killed_engine_is_an_error_at_once_and_comes_back_while_others_stream_on(
    fleet: Fleet,
) -> None:
    fleet.serve("first", tiny_model("llama", **UNHURRIED))
    fleet.serve("second", tiny_model("qwen3", **UNHURRIED))
    victim, bystander = Stream(fleet.url, "first").running(), Stream(fleet.url, "second").running()
    before = bystander.pieces
    psutil.Process(engine_pid(fleet, "first")).kill()
    victim.ended(5)
    assert isinstance(victim.error, openai.APIError), victim.error
    assert victim.finish_reason is None

    fleet.wait_condition("models", "first", "Ready", "False")
    fleet.wait_condition("models", "first", "Ready", "True")
    again = ask(fleet.url, model="first", messages=MESSAGES, max_tokens=5)
    assert again.usage is not None
    assert again.usage.completion_tokens > 0
    assert fleet.engines("first")[0]["status"]["restarts"] == 1
    assert "SIGKILL" in str(fleet.api.list("events"))
    eventually(lambda: bystander.pieces > before, "the other stream went on")
    assert bystander.error is None
    bystander.leave()


def test_a_restarted_controller_has_lost_nothing_and_cut_no_running_stream(fleet: Fleet) -> None:
    fleet.serve("first", tiny_model("llama", **UNHURRIED))
    agent = fleet.agents["node-1"]
    gateway = fleet.start_gateway()
    eventually(
        lambda: "first" in served(gateway.url),
        "the second gateway sees the model",
    )
    direct = Stream(agent.url, "first").running()
    through = Stream(gateway.url, "first").running()
    declared = fleet.find("models", "first")
    pid = engine_pid(fleet, "first")

    fleet.controller.kill()
    seen = (direct.pieces, through.pieces)
    eventually(lambda: direct.pieces > seen[0] and through.pieces > seen[1], "streams go on")
    fleet.controller.start()
    eventually(fleet.controller.answers, "the controller answers again")

    now = fleet.find("models", "first")
    assert declared is not None
    assert now is not None
    assert now["spec"] == declared["spec"]
    assert now["metadata"]["uid"] == declared["metadata"]["uid"]
    direct.running()
    through.running()
    fleet.wait_node("node-1")
    fleet.wait_condition("models", "first", "Ready", "True")
    assert engine_pid(fleet, "first") == pid
    direct.leave()
    through.leave()
    fleet.serve("second", tiny_model("qwen3"))


def test_killing_the_agent_takes_its_engines_down_within_two_seconds(fleet: Fleet) -> None:
    fleet.serve("first", tiny_model("llama", **UNHURRIED))
    stream = Stream(fleet.url, "first").running()
    engines = fleet.agents["node-1"].children()
    assert engines
    fleet.agents["node-1"].kill()
    assert still_alive(engines, 2) == []
    assert isinstance(stream.ended(5).error, openai.APIError | httpx.HTTPError)

    fleet.agents["node-1"].start()
    eventually(lambda: answers(fleet.url, "first"), "the fleet serves the model again")


def test_a_model_that_fits_nowhere_says_what_it_needs_what_is_there_and_the_nearest_node(
    fleet: Fleet,
) -> None:
    fleet.start_agent("roomy", "--ram", "9Gi")
    # 64 million tokens of context for a model of a megabyte: bytes beyond both nodes.
    fleet.apply(
        {
            "kind": "Model",
            "metadata": {"name": "huge"},
            "spec": {
                "source": {"path": str(tiny_model("llama", context=64_000_000))},
                "context": {"minTokens": 64_000_000},
            },
        }
    )
    found = fleet.wait_condition("models", "huge", "Ready", "False")
    assert found["reason"] == "Unplaceable"
    assert "roomy" in found["message"]
    assert "GiB" in found["message"]
    assert "short by" in found["message"]
    eventually(lambda: "huge" in warned_about(fleet), "an event tells of it")
    with pytest.raises(openai.APIStatusError) as refused:
        ask(fleet.url, model="huge", messages=MESSAGES)
    assert refused.value.status_code == 503


def test_deleting_a_model_stops_its_engine_and_removes_every_trace(fleet: Fleet) -> None:
    fleet.serve("first", tiny_model("llama"))
    engine = psutil.Process(engine_pid(fleet, "first"))
    fleet.api.request("DELETE", "/apis/mlxfleet.dev/v1alpha1/models/first")
    eventually(lambda: still_alive([engine], 0) == [], "the engine process is gone")
    eventually(lambda: fleet.engines("first") == [], "the Engine object is gone")
    eventually(lambda: is_unknown(fleet.url, "first"), "the gateway no longer knows the model")


def test_the_agent_drains_on_terminate_and_leaves_no_process(fleet: Fleet) -> None:
    agent = fleet.start_agent("leaving", "--ram", "8Gi")
    fleet.serve("first", tiny_model("llama"), nodeSelector={"mlxfleet.dev/node": "leaving"})
    stream = Stream(agent.url, "first", max_tokens=300).running()
    children = agent.children()
    assert agent.stop() == 0
    assert stream.ended().error is None
    assert stream.finish_reason == "length"
    assert still_alive(children, 2) == []
    eventually(
        lambda: condition(fleet.find("nodes", "leaving"), "Ready") == "False",
        "the node says that its agent stopped",
    )
