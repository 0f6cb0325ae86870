"""Which cache budgets this node and its engines follow, handed to the keeper.

Owns the file that remembers them: an agent that comes back without its controller must not take
its own default for the word of a person, and give up what a larger budget has stored. The sync
calls it whenever budgets, engines or the node changed.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import structlog
from pydantic import Field, ValidationError

from manifests.kinds.cache_budget import CacheBudget, CacheBudgetSpec
from manifests.kinds.engine import Engine
from manifests.kinds.meta import Reported
from manifests.kinds.node import CacheInForce
from node_agent.memory.cache_budgets import FollowedBudget, choose_budget
from node_agent.memory.cache_keeper import CacheKeeper
from node_agent.pool.base import EngineView
from node_agent.sync.cache_figures import describe_node_cache

_LOG = structlog.get_logger(__name__)


class _Named(Reported):
    name: str
    spec: CacheBudgetSpec
    generation: int = 0


class _Saved(Reported):
    """The file; a node that follows the agent's own default says so by None."""

    node: _Named | None = None
    engines: dict[str, _Named] = Field(default_factory=dict)


class CacheFollower:
    """Keeps the prefix caches under the declared budgets."""

    def __init__(self, keeper: CacheKeeper, default: CacheBudgetSpec, file: Path) -> None:
        """Go on under the budgets last followed, if any."""
        self._keeper, self._default, self._file = keeper, default, file
        self._written = _load(file)
        saved = self._written
        if saved is not None:
            node = FollowedBudget("", default) if saved.node is None else _followed(saved.node)
            own = {engine: _followed(one) for engine, one in saved.engines.items()}
            keeper.set_budgets(node, own)

    def in_force(self, views: Iterable[EngineView]) -> CacheInForce:
        """Return the node's budget with what the engines hold."""
        book = self._keeper.book
        return describe_node_cache(book.node_budget, book.node_directory, views)

    def follow(
        self,
        budgets: Mapping[str, CacheBudget],
        labels: Mapping[str, str],
        engines: Mapping[str, Engine],
    ) -> bool:
        """Take in what is declared; return whether the node's budget changed.

        An engine whose budget is not declared follows the node's.
        """
        before = self._keeper.book.node_budget
        node = choose_budget(budgets.values(), labels, self._default)
        named = {name: engine.spec.cache_budget for name, engine in engines.items()}
        own = {
            engine: FollowedBudget(budget, budgets[budget].spec)
            for engine, budget in named.items()
            if budget is not None and budget in budgets
        }
        self._keeper.set_budgets(node, own)
        self._save(node, own)
        if node == before:
            return False
        _LOG.info("cache budget", name=node.name)
        return True

    def _save(self, node: FollowedBudget, own: Mapping[str, FollowedBudget]) -> None:
        saved = _Saved(
            node=_named(node) if node.name else None,
            engines={engine: _named(one) for engine, one in own.items()},
        )
        if saved == self._written:
            return
        temporary = self._file.with_suffix(".tmp")
        try:
            temporary.write_text(saved.model_dump_json(by_alias=True), "utf-8")
            temporary.replace(self._file)
            self._written = saved
        except OSError as fault:
            _LOG.warning("could not save the cache budgets", fault=str(fault))


def _followed(one: _Named) -> FollowedBudget:
    return FollowedBudget(one.name, one.spec, one.generation)


def _named(one: FollowedBudget) -> _Named:
    return _Named(name=one.name, spec=one.spec, generation=one.generation)


def _load(file: Path) -> _Saved | None:
    """Return what was saved; what cannot be trusted is as good as nothing."""
    try:
        return _Saved.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as fault:
        _LOG.warning("ignoring the saved cache budgets", path=str(file), fault=str(fault))
        return None
