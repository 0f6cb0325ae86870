"""What nodes report of their memory, in MiB, so that tests of the gateway read as sums."""

from typing import Any

from controller.gateway.nodes.endpoints import EndpointKey, EndpointView
from manifests.kinds.engine import EnginePhase
from manifests.kinds.guard import Tier
from manifests.kinds.node import CeilingName, Ceilings, PressureLevel
from manifests.sizing.advice import Knobs
from manifests.sizing.shape import LayerGroup, LayerKind, ModelShape
from manifests.units import MIB
from manifests.wire.room import EngineRoom

NOW = 10.0
# One token of a prompt is 64 KiB: 16 tokens are one MiB, and little else counts.
SHAPE = ModelShape(
    model_type="llama",
    groups=(LayerGroup(kind=LayerKind.FULL, layers=64, bytes_per_token=1024),),
    hidden_size=1,
    intermediate_size=1,
    attention_heads=1,
    kv_heads=1,
    head_dim=64,
    vocab_size=16,
    dtype_bytes=2,
    context_tokens=1 << 20,
)


def make_room(free_mib: int, ever_mib: int, **changes: Any) -> EngineRoom:
    """Return the figures of an engine that could get so much now and on its node's best day."""
    size = ever_mib * MIB
    ceilings = Ceilings(
        static_bytes=size,
        dynamic_bytes=size,
        hard_bytes=size,
        abort_bytes=size,
        binding=CeilingName.STATIC,
    )
    figures: dict[str, Any] = {
        "tier": Tier.AGGRESSIVE,
        "ceilings": ceilings,
        "used_bytes": (ever_mib - free_mib) * MIB,
        "reserved_bytes": 0,
        "engine_idle_bytes": 0,
        "all_idle_bytes": 0,
        "margin_bytes": 0,
        "alone": free_mib == ever_mib,
        "fused": True,
        "chunk_tokens": 512,
        "default_output_tokens": 4096,
        "knobs": Knobs(tier=Tier.AGGRESSIVE, ceilings=ceilings, apps_closed_bytes=size),
    }
    return EngineRoom(**{**figures, **changes})


def make_endpoint(name: str, free_mib: int, ever_mib: int, **changes: Any) -> EndpointView:
    """Return an idle engine on a node with so much room, reported at NOW."""
    room = changes.pop("room", None) or make_room(free_mib, ever_mib)
    figures: dict[str, Any] = {
        "key": EndpointKey(name, f"m-{name}"),
        "address": f"http://{name}",
        "model": "m",
        "aliases": (),
        "phase": EnginePhase.READY,
        "accepting": True,
        "running": 0,
        "waiting": 0,
        "max_running": 4,
        "max_waiting": 4,
        "context_tokens": SHAPE.context_tokens,
        "tokens_fit_now": free_mib * 16,
        "prefill_tokens_per_second": 1000.0,
        "decode_tokens_per_second": 50.0,
        "pressure": PressureLevel.OK,
        "reported_seconds": NOW,
        "room": room,
        "shape": SHAPE,
    }
    return EndpointView(**{**figures, **changes})


def room_figures(free_mib: int, ever_mib: int, **changes: Any) -> dict[str, Any]:
    """Return the same as a scripted agent reports it."""
    room = make_room(free_mib, ever_mib, **changes)
    return {
        "room": room.model_dump(mode="json", by_alias=True),
        "shape": SHAPE.model_dump(mode="json", by_alias=True),
        "contextTokens": SHAPE.context_tokens,
    }
