"""From a model directory to a runner that has proved itself with a warm-up pass.

Owns reading the weights, the choice of chunk and runner, and MLX's own limits. It loads no
tokenizer and runs no code from the model directory. Called once, on the MLX thread.
"""

import platform
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm.models.cache import CacheList, make_prompt_cache
from mlx_lm.utils import load_model

from manifests.sizing.estimate import ModelShape
from node_agent.engine.batching.batch import BatchRunner
from node_agent.engine.batching.drafts import DraftBook
from node_agent.engine.batching.lanes import Lanes, find_lanes
from node_agent.engine.batching.serial import SerialRunner
from node_agent.engine.messages import Generate, Load, Loaded, SamplingParams
from node_agent.engine.prefix.kv_codec import KvCodec, RestoreError, describe_layers
from node_agent.engine.prefix.prefix_cache import PrefixCache, prove_codec
from node_agent.engine.prefix.prefix_store import PrefixStore
from node_agent.engine.rows import Memory, RowRunner
from node_agent.engine.scheduling.forecast import Forecast
from node_agent.engine.scheduling.scheduler import Scheduler
from node_agent.kvcache.layer_kinds import cache_fingerprint

# Measured on 2 x86 cores with SmolLM2-135M fp32, OpenBLAS, idle: in two lanes a prompt of 2,800
# tokens is fed at 150 tok/s in chunks of 64, 164 in 128, 160 in 192, 168 in 256 and 177 in 512; one
# of 512 at 288, 354, 376, 336 and 367. In one lane it is 98, 122, 119, 113 and 75 in 2048: wider
# ones lose the unfused score matrix from the processor's cache. Narrow ones hear commands sooner.
CPU_CHUNK_TOKENS = 128
GPU_CHUNK_TOKENS = 512

_EVAL_GROUP_BYTES = 64 << 20
_MIN_CACHE_LIMIT_BYTES = 512 << 20
_MAX_CACHE_LIMIT_BYTES = 4 << 30

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run rows."""

    runner: RowRunner
    vocab_size: int
    announcement: Loaded
    forecast: Forecast | None = None
    prefixes: PrefixCache | None = None
    prefixes_fault: str = ""


def default_cache_limit_bytes(recommended_working_set_bytes: int) -> int:
    """Return how much freed memory MLX may keep, or 0 for MLX's own default. Pure.

    On Metal that default is the whole memory limit, which starves everything else.
    """
    if recommended_working_set_bytes <= 0:
        return 0
    share = recommended_working_set_bytes // 16
    return max(_MIN_CACHE_LIMIT_BYTES, min(share, _MAX_CACHE_LIMIT_BYTES))


def set_wired_limit(limit_bytes: int) -> None:
    """Let MLX keep so much wired from now on, as far as Metal allows; without Metal do nothing.

    MLX wires or unwires what it holds at once. What was begun is waited for first, as mlx-lm's
    own `wired_limit` does. Mutates: MLX's wired limit. Source: mlx_lm.generate, MLX's ResidencySet.
    """
    working_set_bytes = int(mx.device_info().get("max_recommended_working_set_size", 0))
    if working_set_bytes:
        mx.synchronize()
        mx.set_wired_limit(min(limit_bytes, working_set_bytes))


def load(
    command: Load, progress: Progress, memory: Memory, store: PrefixStore | None = None
) -> LoadedModel:
    """Load the weights, choose a runner and prove it; with a store its rows share prefixes.

    Mutates: MLX's cache and wired limits. Raises: whatever the model's files make mlx-lm raise.
    """
    info = mx.device_info()
    working_set_bytes = int(info.get("max_recommended_working_set_size", 0))
    cache_limit_bytes = command.cache_limit_bytes or default_cache_limit_bytes(working_set_bytes)
    if cache_limit_bytes:
        mx.set_cache_limit(cache_limit_bytes)
    # Nothing wired unless told so: with cache churn, wiring is tied to kernel panics.
    set_wired_limit(command.wired_limit_bytes)
    forecast = read_forecast(command)
    model, config = load_model(Path(command.model_path), lazy=True)
    _read_weights(model, progress)
    on_gpu = mx.default_device().type == mx.DeviceType.gpu
    chunk_tokens = command.chunk_tokens or (GPU_CHUNK_TOKENS if on_gpu else CPU_CHUNK_TOKENS)
    vocab_size = _find_vocab_size(model, config)
    book = DraftBook() if command.drafts else DraftBook(most_tokens=0)
    sizes = (chunk_tokens, command.max_running)
    runner = _choose_runner(find_lanes(model), vocab_size, memory, sizes, book)
    prefixes, fault = None, ""
    if store is not None:
        try:
            prefixes = _share_prefixes(model, command.model_fingerprint, store)
            # Who asks first after a restart is to find what is stored.
            store.await_disk()
        except (RestoreError, ValueError, TypeError, AttributeError) as error:
            # A kind of layer that nobody knows; the model serves all the same.
            traceback.print_exc()
            fault = str(error)
        runner.prefixes = prefixes
    mx.clear_cache()
    announcement = Loaded(
        device=f"{'gpu' if on_gpu else 'cpu'}: {info.get('device_name') or platform.machine()}",
        mlx_version=version("mlx"),
        chunk_tokens=chunk_tokens,
        active_bytes=mx.get_active_memory(),
        recommended_working_set_bytes=working_set_bytes,
        memory_bytes=int(info.get("memory_size", 0)),
        max_buffer_bytes=int(info.get("max_buffer_length", 0)),
        cache_fingerprint="" if prefixes is None else prefixes.fingerprint,
    )
    return LoadedModel(runner, vocab_size, announcement, forecast, prefixes, fault)


def read_forecast(command: Load) -> Forecast | None:
    """Return what chunks are predicted with, or None without a shape: then no gate. Pure."""
    if not command.shape:
        return None
    return Forecast(ModelShape.model_validate_json(command.shape), command.fused)


def _share_prefixes(model: nn.Module, fingerprint: str, store: PrefixStore) -> PrefixCache:
    codec = KvCodec(model, describe_layers(model))
    prove_codec(model, codec)
    return PrefixCache(codec, cache_fingerprint(fingerprint, codec.layout.layers), store)


def _read_weights(model: nn.Module, progress: Progress) -> None:
    arrays = [array for _, array in tree_flatten(model.parameters())]
    total_bytes = sum(array.nbytes for array in arrays)
    done_bytes = group_bytes = 0
    group: list[mx.array] = []
    progress(0, total_bytes)
    for array in arrays:
        group.append(array)
        group_bytes += array.nbytes
        if group_bytes >= _EVAL_GROUP_BYTES:
            mx.eval(group)
            done_bytes += group_bytes
            progress(done_bytes, total_bytes)
            group, group_bytes = [], 0
    mx.eval(group)
    progress(total_bytes, total_bytes)


def _find_vocab_size(model: nn.Module, config: dict[str, Any]) -> int:
    """Return how many token ids are valid input; a larger id would read past the embedding."""
    logits = model(mx.array([[0]]), cache=make_prompt_cache(model))
    mx.eval(logits)
    sizes = [logits.shape[-1]]
    for section in (config, config.get("text_config") or {}):
        declared = section.get("vocab_size")
        if isinstance(declared, int) and declared > 0:
            sizes.append(declared)
    return int(min(sizes))


def _can_merge(cache: object) -> bool:
    if isinstance(cache, CacheList):
        return all(_can_merge(member) for member in cache.caches)
    return hasattr(cache, "merge")


def _choose_runner(
    lanes: Lanes, vocab_size: int, memory: Memory, sizes: tuple[int, int], book: DraftBook
) -> BatchRunner | SerialRunner:
    chunk_tokens, max_running = sizes
    if all(_can_merge(cache) for cache in make_prompt_cache(lanes.model)):
        batch = BatchRunner(lanes, chunk_tokens, max_running, book)
        try:
            _warm_up(batch, vocab_size, memory)
        except (ValueError, TypeError, AttributeError, NotImplementedError):
            # The caches merge in name only; one at a time may still work, and tells if not.
            traceback.print_exc()
        else:
            return batch
    serial = SerialRunner(lanes, chunk_tokens)
    _warm_up(serial, vocab_size, memory)
    return serial


def _warm_up(runner: RowRunner, vocab_size: int, memory: Memory) -> None:
    """Run two short rows to their end; compiles the kernels and shows what cannot run."""
    scheduler = Scheduler(runner, vocab_size, memory)
    for row in range(min(2, runner.max_rows)):
        prompt = [position % vocab_size for position in range(5 + 4 * row)]
        sampling = SamplingParams(temperature=0)
        scheduler.submit(
            Generate(request_id=f"warm-up-{row}", prompt=prompt, max_tokens=2, sampling=sampling)
        )
    while scheduler.busy:
        scheduler.step()
