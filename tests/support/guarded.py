"""A fleet of one node whose memory ceiling a test sets to what the engine holds plus some room.

The ceiling is a custom one, so other programs of this machine do not move it, and the footprint
is the engine's real one. Used by tests/behaviour/guard.
"""

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from manifests.units import MIB, parse_quantity
from tests.support.fleet import Fleet, Part, eventually, running_fleet

GUARD = "tight"
OPEN_CEILING = "3Gi"
MARGIN = "4Mi"
SETTLE_SECONDS = 4.0
_FIGURE = re.compile(r"([0-9]+(?:\.[0-9]+)?) (bytes|B|KiB|MiB|GiB|TiB)\b")


@dataclass(slots=True)
class GuardedNode:
    """The node, its model and a client of the agent itself, without the gateway."""

    fleet: Fleet
    agent: Part
    model: str = "tiny"
    http: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=110, trust_env=False))

    def load(self) -> dict[str, Any]:
        """Return the node's newest load report."""
        url = self.agent.url + "/fleet/v1/load"
        with httpx.stream("GET", url, timeout=10, trust_env=False) as stream:
            for line in stream.iter_lines():
                if line.strip():
                    report: dict[str, Any] = json.loads(line)
                    return report
        raise AssertionError("the load stream ended without a report")

    def engine(self) -> dict[str, Any]:
        """Return the load of the one engine of the model."""
        [engine] = [item for item in self.load()["engines"] if item["model"] == self.model]
        return dict(engine)

    def serve(self, source: Path, **spec: Any) -> None:
        """Serve a model under an open ceiling, and warm it up.

        A process that has fed a prompt rests higher than a new one: compiled kernels, BLAS
        buffers. The ceiling that a test sets counts from there.
        """
        self.set_ceiling(parse_quantity(OPEN_CEILING))
        self.fleet.serve(self.model, source, memoryGuard=GUARD, **spec)
        assert self.complete(1500, max_tokens=4).status_code == 200

    def set_ceiling(self, ceiling_bytes: int) -> None:
        """Set the ceiling and wait until the agent follows it."""
        mebibytes = -(-ceiling_bytes // MIB)
        self.set_guard(tier="custom", customCeiling=f"{mebibytes}Mi")

        def followed() -> bool:
            return bool(self.load()["ceilings"]["dynamicBytes"] == mebibytes * MIB)

        eventually(followed, "the agent follows the guard")

    def set_guard(self, **spec: Any) -> None:
        """Replace the guard; its margin is small, as these models are."""
        spec = {"prefillTransientMargin": MARGIN, **spec}
        self.fleet.apply({"kind": "MemoryGuard", "metadata": {"name": GUARD}, "spec": spec})

    def tighten(self, room_bytes: int) -> None:
        """Leave this much room above what the idle engine holds."""
        self.set_ceiling(self.settled_used_bytes() + room_bytes)

    def settled_used_bytes(self) -> int:
        """Return what the idle node uses once it was within a mebibyte for four seconds."""
        seen: list[tuple[float, int]] = []

        def settled() -> bool:
            report, now = self.load(), time.monotonic()
            if report["reservedBytes"] or self.in_flight():
                seen.clear()
                return False
            seen.append((now, report["usedBytes"]))
            seen[:] = [item for item in seen if now - item[0] <= SETTLE_SECONDS]
            figures = [used for _, used in seen]
            spans = now - seen[0][0] >= SETTLE_SECONDS - 0.5
            return spans and max(figures) - min(figures) <= MIB

        eventually(settled, "the node's use settles")
        return seen[-1][1]

    def complete(
        self, prompt_tokens: int, *, max_tokens: int = 1, stream: bool = False, **fields: Any
    ) -> httpx.Response:
        """Send a prompt of so many tokens; the whole answer."""
        body = self.body(prompt_tokens, max_tokens=max_tokens, stream=stream, **fields)
        return self.http.post(self.agent.url + "/v1/completions", json=body)

    def body(self, prompt_tokens: int, **fields: Any) -> dict[str, Any]:
        """Return a completions body with a prompt of so many tokens."""
        prompt = [10 + index % 900 for index in range(prompt_tokens)]
        return {"model": self.model, "prompt": prompt, "ignore_eos": True, **fields}

    def engine_process(self) -> psutil.Process:
        """Return the engine's process."""
        [found] = [
            child
            for child in self.agent.children()
            if any("node_agent.engine" in word for word in child.cmdline())
        ]
        return found

    def in_flight(self) -> int:
        """Return the requests that the agent has under way."""
        page = self.http.get(self.agent.url + "/metrics").text
        [line] = [
            line
            for line in page.splitlines()
            if line.startswith("mlxfleet_node_requests_in_flight ")
        ]
        return int(float(line.split()[1]))

    def wait_idle(self, seconds: float = 30.0) -> None:
        """Wait until no request is under way, waiting or running, anywhere on the node."""

        def idle() -> bool:
            engine = self.engine()
            return self.in_flight() == engine["running"] == engine["waiting"] == 0

        eventually(idle, "nothing is under way", seconds)

    def find_limit_tokens(self, *, max_tokens: int = 1) -> int:
        """Return the longest prompt that the node says it would take."""
        context = self.engine()["contextTokens"]
        refused = self.complete(context - max_tokens - 1, max_tokens=max_tokens)
        assert refused.status_code == 413, refused.text
        return int(refused.json()["error"]["fitting_tokens"])


def shown_figures(message: str) -> list[float]:
    """Return every byte figure in a refusal's words, in bytes."""
    units = {"bytes": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
    return [float(number) * units[unit] for number, unit in _FIGURE.findall(message)]


def check_refusal(error: dict[str, Any]) -> None:
    """Check that words and fields of a memory refusal say one thing, and a true one."""
    assert error["code"] == "prefill_memory_exceeded"
    need, limit = shown_figures(error["message"])[:2]
    assert need > limit, error["message"]
    assert abs(need - error["estimated_bytes"]) <= 0.01 * need
    assert abs(limit - error["limit_bytes"]) <= max(1, 0.01 * limit)
    assert error["estimated_bytes"] > error["limit_bytes"]
    assert f"{error['binding']} ceiling" in error["message"]


@contextmanager
def guarded_node(directory: Path, *options: str, ram: str = "8Gi") -> Iterator[GuardedNode]:
    """Run a controller and one agent with these options."""
    with running_fleet(directory, agents=0) as fleet:
        node = GuardedNode(fleet, fleet.start_agent("node-1", "--ram", ram, *options))
        try:
            yield node
        finally:
            node.http.close()
