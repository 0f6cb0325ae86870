"""From a declared source to files and to the bytes their load takes.

Owns turning every fault on the way into a lifecycle event, so that an engine never hangs in it.
Called by the slot.
"""

from collections.abc import Callable
from dataclasses import dataclass

from manifests.kinds.engine import EngineSpec
from manifests.kinds.model import EngineType
from node_agent.pool.lifecycle import ResolveFailed
from node_agent.pool.load_plan import plan_load_bytes
from node_agent.sources.base import ModelFiles, SourceError, SourceResolver


@dataclass(frozen=True, slots=True)
class Found:
    """The files of a model here, and what its load takes."""

    files: ModelFiles
    need_bytes: int


async def find_files(
    spec: EngineSpec,
    resolver: SourceResolver,
    progress: Callable[[int, int], None],
    *,
    fused: bool,
) -> Found | ResolveFailed:
    """Return the files and their need, or why there are none."""
    if spec.engine_type is not EngineType.BATCHED:
        message = f"engineType {spec.engine_type} is not supported by this agent; use batched"
        return ResolveFailed(message, "EngineTypeNotSupported", permanent=True)
    try:
        files = await resolver.resolve(spec.source, progress)
        return Found(files, plan_load_bytes(spec, files, fused=fused))
    except SourceError as fault:
        return ResolveFailed(fault.message, fault.code, fault.permanent)
    except Exception as fault:  # noqa: BLE001 - root of the task; the engine must not hang
        message = f"resolving the source failed: {type(fault).__name__}: {fault}"
        return ResolveFailed(message, "ResolveFailed", permanent=False)
