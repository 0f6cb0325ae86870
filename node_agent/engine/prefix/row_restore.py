"""One row's restore, piece by piece: blocks are read elsewhere, layers are built here.

Owns how much is built at a time. The MLX thread calls `step` between decode steps, so that a
restore of many blocks keeps no running stream waiting.
"""

import time
from typing import Any

from node_agent.engine.prefix.kv_codec import Building, KvCodec
from node_agent.kvcache.restoring import Restored, Restoring

# What is built between two decode steps: so much, or for so long, and a layer more.
STEP_BYTES = 128 << 20
STEP_SECONDS = 0.25


class RowRestore:
    """A row's way from stored blocks to a cache."""

    def __init__(self, restoring: Restoring, codec: KvCodec, step_bytes: int = STEP_BYTES) -> None:
        self._restoring, self._codec, self._step_bytes = restoring, codec, step_bytes
        self._building: Building | None = None
        self.restored = Restored()

    @property
    def built_bytes(self) -> int:
        """How much of the cache is there."""
        return 0 if self._building is None else self._building.built_bytes

    @property
    def caches(self) -> list[Any] | None:
        """The row's cache once all is done; None when there is nothing to start from after all."""
        return None if self._building is None else self._building.caches

    def step(self, wait_seconds: float) -> bool:
        """Do one piece, waiting so long for blocks at most; True when all is done.

        Raises: RestoreError when a block does not fit the model.
        """
        if self._building is None:
            restored = self._restoring.poll(wait_seconds)
            if restored is None:
                return False
            self.restored = restored
            if not restored.blocks:
                return True
            self._building = self._codec.begin(restored.blocks, restored.tokens)
        until_bytes = self._building.built_bytes + self._step_bytes
        until_seconds = time.perf_counter() + STEP_SECONDS
        while self._building.built_bytes < until_bytes:
            if self._building.step():
                return True
            if time.perf_counter() >= until_seconds:
                break
        return False

    def close(self) -> None:
        """Let the blocks go."""
        self._restoring.close()
