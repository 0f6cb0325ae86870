"""MLX's memory gauges, and the measuring of one chunk.

Owns the peak counter: MLX has one for the process, and measuring a chunk resets it, so the peak
of the engine's life is kept here. `read` is safe from any thread; the rest is for the MLX thread.
"""

import mlx.core as mx

from node_agent.engine.mailbox import MemoryGauges


class MemoryMeter:
    """The gauges of this process."""

    def __init__(self) -> None:
        self._kept_peak_bytes = 0
        self._start_bytes = 0

    def read(self) -> MemoryGauges:
        """Return what MLX holds now and the most it ever held."""
        peak_bytes = max(self._kept_peak_bytes, mx.get_peak_memory())
        return MemoryGauges(mx.get_active_memory(), mx.get_cache_memory(), peak_bytes)

    def clear(self) -> None:
        """Give MLX's freed buffers back to the system."""
        mx.clear_cache()

    def begin_chunk(self) -> None:
        """Wait for the decode step that runs ahead, then start measuring."""
        mx.synchronize()
        self._kept_peak_bytes = max(self._kept_peak_bytes, mx.get_peak_memory())
        mx.reset_peak_memory()
        self._start_bytes = mx.get_active_memory()

    def end_chunk(self) -> int:
        """Return the peak since the chunk began, over what was active then."""
        return max(0, mx.get_peak_memory() - self._start_bytes)
