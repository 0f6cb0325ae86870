"""What a load takes and what the engine is told, from the spec and the files. Pure.

Called by the slot. Units: bytes, tokens.
"""

from manifests.kinds.engine import EngineSpec
from manifests.sizing.estimate import estimate_engine
from node_agent.engine.messages import CacheSettings, Heartbeat, Limits, Load, Loaded
from node_agent.pool.cache_side import CacheTerms
from node_agent.pool.settings import PoolSettings
from node_agent.sources.base import ModelFiles

# Placement's default too, so that what it placed by is what is asked for here.
DEFAULT_CHUNK_TOKENS = 512

# MLX frees a little between the end of a load and the next heartbeat.
_SEEN_RATIO = 0.9


def plan_load_bytes(spec: EngineSpec, files: ModelFiles, *, fused: bool) -> int:
    """Return what must be free before an engine's process starts.

    The weights, what every engine process holds, and one request of the model's minimum context,
    as placement counts: a model that was loaded into the last byte could answer nobody. Only the
    first two are held in the end; the rest is promised until the load is over.
    """
    limits = (spec.context.min_tokens, spec.context.max_tokens, files.shape.context_tokens)
    tokens = min(limit for limit in limits if limit)
    estimate = estimate_engine(
        files.shape,
        files.weights_bytes,
        context_tokens=tokens,
        chunk_tokens=min(spec.prefill.chunk_tokens or DEFAULT_CHUNK_TOKENS, tokens),
        fused=fused,
    )
    return estimate.needed_bytes


def plan_load(
    spec: EngineSpec,
    files: ModelFiles,
    settings: PoolSettings,
    limits: Limits,
    wired_limit_bytes: int,
    cache: CacheTerms | None = None,
) -> Load:
    """Return the engine's first command; `limits` are the last ones sent to it, if any."""
    cached = cache is not None and cache.enabled
    return Load(
        model_path=str(files.directory),
        chunk_tokens=spec.prefill.chunk_tokens or 0,
        max_running=spec.batching.max_running,
        cache_limit_bytes=settings.cache_limit_bytes,
        shape=files.shape.model_dump_json(),
        fused=settings.fused,
        wired_limit_bytes=wired_limit_bytes,
        limits=limits,
        model_fingerprint=files.content if cached else "",
        cache=cache.settings if cache is not None else CacheSettings(),
    )


def are_weights_counted(
    loaded: Loaded | None, heartbeat: Heartbeat | None, counted_bytes: int | None
) -> bool:
    """Return whether the weights are in what counts as used, so that their promise may end.

    The engine itself must have said so, and then the memory side's own measurement, which comes
    up to one poll later. `counted_bytes` None means that nobody measures.
    """
    if loaded is None or heartbeat is None:
        return False
    weights_bytes = int(_SEEN_RATIO * loaded.active_bytes)
    if heartbeat.active_bytes < weights_bytes:
        return False
    return counted_bytes is None or counted_bytes >= weights_bytes
