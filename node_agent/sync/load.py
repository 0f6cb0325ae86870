"""The live figures that gateways route by.

Builds a `LoadReport` from the pool and the arbiter on demand; streams nothing itself.
"""

from collections.abc import Callable, Sequence

from manifests.kinds.engine import EnginePhase
from manifests.kinds.node import PressureLevel
from manifests.wire.report import EngineLoad, LoadReport
from node_agent.memory.arbiter import Arbiter
from node_agent.pool.base import EngineView, Pool
from node_agent.pool.cache_side import CacheTally
from node_agent.sources.base import ModelFiles
from node_agent.sync.figures import observe_figures, observe_room


class LoadSource:
    """Answers what this node could take right now."""

    def __init__(
        self,
        node: str,
        instance: str,
        pool: Pool,
        arbiter: Arbiter,
        level: Callable[[], PressureLevel] | None = None,
    ) -> None:
        """`level` is the one in force; without it, that of the newest reading."""
        self._node, self._instance, self._level = node, instance, level
        self._text_fingerprint: Callable[[ModelFiles], str] = _untold
        self._pool, self._arbiter = pool, arbiter
        self._sequence = 0
        self._accepting = True

    def follow_texts(self, fingerprint: Callable[[ModelFiles], str]) -> None:
        """Report from now on which tokenizer each engine's prompts go through."""
        self._text_fingerprint = fingerprint

    @property
    def accepting(self) -> bool:
        """Whether the agent takes new requests."""
        return self._accepting

    def stop_accepting(self) -> None:
        """Tell gateways to send nothing more. Mutates: the reports from now on."""
        self._accepting = False

    def report(self) -> LoadReport:
        """Return the figures of this moment. Mutates: the sequence number."""
        self._sequence += 1
        state, views = self._arbiter.state(), self._pool.views()
        return LoadReport(
            node=self._node,
            instance=self._instance,
            sequence=self._sequence,
            accepting=self._accepting,
            pressure=state.pressure if self._level is None else self._level(),
            ceilings=state.ceilings,
            used_bytes=state.used_bytes,
            reserved_bytes=state.reserved_bytes,
            headroom_bytes=state.headroom_bytes,
            engines=tuple(self._engine(view, views) for view in views),
        )

    def _engine(self, view: EngineView, views: Sequence[EngineView]) -> EngineLoad:
        spec, figures = view.want.spec, observe_figures(self._arbiter, view)
        began = view.cache.began
        return EngineLoad(
            name=view.want.name,
            model=spec.model,
            aliases=tuple(spec.aliases),
            phase=view.phase,
            accepting=self._accepting and view.accepting,
            wakes=self._accepting and view.wakes,
            load_seconds=round(view.load_seconds, 1),
            running=view.running,
            waiting=view.waiting,
            max_running=spec.batching.max_running,
            max_waiting=spec.batching.max_waiting,
            context_tokens=figures.context_tokens,
            kv_bytes_per_token=figures.kv_bytes_per_token,
            tokens_fit_now=figures.tokens_fit_now,
            tokens_fit_ever=figures.tokens_fit_ever,
            prompt_tokens_left=view.prompt_tokens_left,
            prefill_tokens_per_second=view.prefill_tokens_per_second,
            prefill_context_tokens=round(view.prefill_context_tokens, 1),
            decode_tokens_per_second=view.decode_tokens_per_second,
            fingerprint="" if view.files is None else view.files.fingerprint,
            cache_fingerprint="" if view.loaded is None else view.loaded.cache_fingerprint,
            block_tokens=0 if began is None else began.settings.block_tokens,
            cache_isolated=view.cache.terms.isolated,
            text_fingerprint="" if view.files is None else self._text_fingerprint(view.files),
            restore_tokens_per_second=_restore_rate(view.cache.tally),
            room=observe_room(
                self._arbiter,
                view,
                self._givable_bytes(view, views),
                sum(item.cache.hot_used_bytes for item in views),
            ),
            shape=None if view.files is None else view.files.shape,
        )

    def _givable_bytes(self, view: EngineView, views: Sequence[EngineView]) -> int:
        """Return what the node may free for one engine's request: hot caches, idle engines."""
        idle = (
            self._arbiter.engine_footprint_bytes(item.want.name)
            if _is_idle(item) and item.want.name != view.want.name
            else item.cache.hot_used_bytes
            for item in views
        )
        return sum(idle)


def _is_idle(view: EngineView) -> bool:
    unused = view.idle_seconds is not None and not view.leases
    return view.phase is EnginePhase.READY and unused and not view.want.spec.keep.pinned


def _restore_rate(tally: CacheTally) -> float:
    """Return how many cached tokens a second were restored, 0 before the first."""
    if tally.restore_seconds <= 0:
        return 0.0
    return round((tally.hot_tokens + tally.ssd_tokens) / tally.restore_seconds, 1)


def _untold(_files: ModelFiles) -> str:
    return ""
