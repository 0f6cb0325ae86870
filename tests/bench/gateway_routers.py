"""The other routers that gateway_peers.py measures ours beside: how each is found and called."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.bench.fake_node import MODEL

LITELLM, SGLANG = "litellm", "sglang-router"


@dataclass(frozen=True, slots=True)
class Router:
    """A peer: where its program is found and how it is called."""

    name: str
    variable: str
    program: str
    install: str
    arguments: Callable[[int, list[str], Path], list[str]]


def litellm_arguments(port: int, nodes: list[str], directory: Path) -> list[str]:
    """Return what `litellm` is called with. Writes its configuration."""
    deployments = [
        {
            "model_name": MODEL,
            "litellm_params": {"model": f"openai/{MODEL}", "api_base": f"{url}/v1", "api_key": "x"},
        }
        for url in nodes
    ]
    config = directory / "litellm.json"
    # Our gateway is measured without keys too.
    general = {"dangerously_permit_weak_or_unset_master_key": True}
    config.write_text(json.dumps({"model_list": deployments, "general_settings": general}))
    return ["--config", str(config), "--port", str(port), "--num_workers", "1"]


def sglang_arguments(port: int, nodes: list[str], _directory: Path) -> list[str]:
    """Return what sglang-router is called with."""
    door = ["--host", "127.0.0.1", "--port", str(port)]
    return ["launch", *door, "--policy", "cache_aware", "--worker-urls", *nodes]


PEERS = (
    Router(
        LITELLM,
        "MLXFLEET_PEER_LITELLM",
        "litellm",
        "pip install 'litellm[proxy]' (in an environment of its own)",
        litellm_arguments,
    ),
    Router(
        SGLANG,
        "MLXFLEET_PEER_SGLANG_ROUTER",
        "smg",
        "pip install sglang-router (in an environment of its own)",
        sglang_arguments,
    ),
)


def find(router: Router) -> str | None:
    """Return a peer's program: named by its variable, beside our Python, or on PATH."""
    named = os.environ.get(router.variable)
    if named:
        return named if os.access(named, os.X_OK) else None
    folders = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    return shutil.which(router.program, path=os.pathsep.join(folders))
