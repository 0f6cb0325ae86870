"""What one engine can hold now and ever, from its shape and the arbiter's room.

Reads the arbiter and computes; changes nothing. Used by status reports and the load stream,
so that both tell the same. Units: bytes, tokens.
"""

from functools import lru_cache

from manifests.sizing.estimate import estimate_bytes_per_token, estimate_tokens_that_fit
from manifests.wire.room import EngineRoom
from node_agent.memory.arbiter import Arbiter
from node_agent.pool.base import EngineView
from node_agent.serving.limits import DEFAULT_MAX_TOKENS
from node_agent.sync.cache_figures import describe_engine_cache
from node_agent.sync.plan import EngineFigures

DEFAULT_CHUNK_TOKENS = 512

# Both tell many times a second, mostly of figures that have not changed, and a search takes 0.3 ms.
_tokens_that_fit = lru_cache(maxsize=256)(estimate_tokens_that_fit)


def observe_figures(arbiter: Arbiter, view: EngineView) -> EngineFigures:
    """Return the figures of one engine; zeros for what is not known before it has its files."""
    name = view.want.name
    footprint = arbiter.engine_footprint_bytes(name) if view.pid is not None else 0
    if view.files is None:
        return EngineFigures(footprint_bytes=footprint)
    shape = view.files.shape
    limits = (view.want.spec.context.max_tokens, shape.context_tokens)
    context = min((limit for limit in limits if limit), default=0)
    chunk = DEFAULT_CHUNK_TOKENS if view.loaded is None else view.loaded.chunk_tokens
    now_bytes, ever_bytes = arbiter.engine_room_bytes(name)
    if view.loaded is None:
        # The room is the machine's; what the weights will take is not in it yet.
        weights = view.files.weights_bytes
        now_bytes, ever_bytes = max(0, now_bytes - weights), max(0, ever_bytes - weights)
    rooms = ((now_bytes, arbiter.transient_ratio(name)), (ever_bytes, 1.0))
    now_tokens, ever_tokens = (
        min(
            context,
            _tokens_that_fit(
                shape,
                room_bytes,
                chunk_tokens=max(1, chunk),
                fused=arbiter.fused,
                transient_ratio=ratio,
            ),
        )
        for room_bytes, ratio in rooms
    )
    return EngineFigures(
        footprint_bytes=footprint,
        kv_bytes_per_token=estimate_bytes_per_token(shape),
        context_tokens=context,
        tokens_fit_now=now_tokens,
        tokens_fit_ever=ever_tokens,
        cache=describe_engine_cache(view),
    )


def observe_room(
    arbiter: Arbiter, view: EngineView, givable_bytes: int = 0, hot_bytes: int = 0
) -> EngineRoom | None:
    """Return what an engine's requests are judged by; None where nothing is judged yet.

    `givable_bytes` is what the node could free for it, `hot_bytes` what of it are hot caches.
    """
    if view.files is None or not arbiter.enforced or arbiter.watermarks() is None:
        return None
    name, spec = view.want.name, view.want.spec
    standing = arbiter.standing(name)
    # A load that goes on holds a part of them already.
    absent = max(0, view.files.weights_bytes - standing.engine_idle_bytes)
    return EngineRoom(
        tier=standing.tier,
        ceilings=standing.ceilings,
        used_bytes=standing.used_bytes,
        reserved_bytes=standing.reserved_bytes,
        engine_idle_bytes=standing.engine_idle_bytes,
        all_idle_bytes=standing.all_idle_bytes,
        margin_bytes=standing.margin_bytes,
        alone=standing.alone,
        fused=arbiter.fused,
        chunk_tokens=find_chunk_tokens(view),
        transient_ratio=arbiter.lessons.of(name).ratio,
        absent_bytes=0 if view.loaded is not None else absent,
        default_output_tokens=spec.sampling.max_tokens or DEFAULT_MAX_TOKENS,
        givable_bytes=givable_bytes,
        hot_bytes=hot_bytes,
        knobs=standing.find_knobs(),
    )


def find_chunk_tokens(view: EngineView) -> int:
    """Return the chunk that a request of this engine is judged by."""
    loaded = 0 if view.loaded is None else view.loaded.chunk_tokens
    return loaded or view.want.spec.prefill.chunk_tokens or DEFAULT_CHUNK_TOKENS
