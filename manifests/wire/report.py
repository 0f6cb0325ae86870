"""The load that an agent streams to gateways, and what it can tell of a model's files.

`GET /fleet/v1/load` on an agent answers newline-delimited JSON, one `LoadReport` a line: at
once on a change, at most ten a second and at least one a second. The stream is also the
node's health check: silence means trouble.

`POST /fleet/v1/inspect` with a `Source` answers an `Inspection`, or 404 with an OpenAI error
body that says why this node cannot reach the source.
"""

from collections.abc import Mapping

from pydantic import Field

from manifests.kinds.engine import EnginePhase
from manifests.kinds.meta import Reported
from manifests.kinds.node import Ceilings, PressureLevel
from manifests.sizing.estimate import ModelShape
from manifests.wire.room import EngineRoom

LOAD_PATH = "/fleet/v1/load"
INSPECT_PATH = "/fleet/v1/inspect"
LOG_PATH = "/fleet/v1/engines/{name}/log"


class EngineLoad(Reported):
    """One engine's live figures. Units: tokens, bytes, tokens per second."""

    name: str
    model: str
    aliases: tuple[str, ...] = ()
    phase: EnginePhase
    accepting: bool = Field(description="ready, making progress, not draining")
    wakes: bool = Field(
        default=False, description="unloaded to make room, or coming back: a request may wait here"
    )
    load_seconds: float = Field(default=0.0, description="what its last load took, 0 when unknown")
    running: int = 0
    waiting: int = 0
    max_running: int = 0
    max_waiting: int = 0
    context_tokens: int = 0
    kv_bytes_per_token: int = 0
    tokens_fit_now: int = 0
    tokens_fit_ever: int = 0
    prompt_tokens_left: int | None = Field(
        default=None, description="of its requests, not fed yet; None from an agent that is older"
    )
    prefill_tokens_per_second: float = 0.0
    prefill_context_tokens: float | None = Field(
        default=None, description="how many tokens lay before those of this rate; None: unknown"
    )
    decode_tokens_per_second: float = Field(
        default=0.0, description="of one request, 0 before it was measured"
    )
    fingerprint: str = ""
    cache_fingerprint: str = Field(
        default="", description="root of its prefix chains; empty without a prefix cache"
    )
    block_tokens: int = Field(default=0, description="tokens in a full block of the cache")
    cache_isolated: bool = Field(
        default=False, description="prefixes are shared within a tenant only"
    )
    text_fingerprint: str = Field(
        default="", description="of the files that make its prompts' token ids; empty: unknown"
    )
    restore_tokens_per_second: float = Field(
        default=0.0, description="of cached tokens, as measured; 0 before the first restore"
    )
    room: EngineRoom | None = Field(
        default=None, description="what its requests are judged by; None before that is known"
    )
    shape: ModelShape | None = Field(
        default=None,
        description="of its model, in the first report of a connection and when it changed",
    )


class LoadReport(Reported):
    """One node's live figures."""

    node: str
    instance: str
    sequence: int
    accepting: bool = Field(description="false while the agent drains")
    pressure: PressureLevel = PressureLevel.OK
    ceilings: Ceilings = Field(default_factory=Ceilings)
    used_bytes: int = 0
    reserved_bytes: int = 0
    headroom_bytes: int = 0
    engines: tuple[EngineLoad, ...] = ()


def leave_out_shapes(report: LoadReport, sent: Mapping[str, ModelShape]) -> LoadReport:
    """Return the report without the shapes that a reader of this connection has already."""
    engines = tuple(
        load.model_copy(update={"shape": None}) if load.shape == sent.get(load.name) else load
        for load in report.engines
    )
    return report.model_copy(update={"engines": engines})


def fill_in_shapes(report: LoadReport, known: Mapping[str, ModelShape]) -> LoadReport:
    """Return the report with the shapes that were left out of it."""
    engines = tuple(
        load if load.shape is not None else load.model_copy(update={"shape": known.get(load.name)})
        for load in report.engines
    )
    return report.model_copy(update={"engines": engines})


def shapes_of(report: LoadReport) -> dict[str, ModelShape]:
    """Return the shapes of the engines in a report, by engine."""
    return {load.name: load.shape for load in report.engines if load.shape is not None}


class Inspection(Reported):
    """What a node can tell of a source without loading it."""

    source: str
    weights_bytes: int
    fingerprint: str
    shape: ModelShape
    on_disk: bool = True
