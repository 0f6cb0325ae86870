"""What engines are told of their caches, and what pressure takes from them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from manifests.kinds.cache_budget import CacheBudgetSpec
from manifests.kinds.engine import EnginePhase
from manifests.units import Quantity
from node_agent.engine.messages import CacheLimits, CacheReport, Command
from node_agent.memory.cache_book import CacheBook, observe_directory_fault
from node_agent.memory.cache_budgets import CachePlaces, FollowedBudget
from node_agent.memory.cache_keeper import CacheKeeper, FreeMemory
from node_agent.pool.base import EngineView
from node_agent.pool.cache_side import CacheTerms, CacheView
from tests.support.pools import make_want

MIB = 1 << 20
PLENTY = FreeMemory(1 << 40, 1 << 40, 0)


def spec(hot_mib: int = 100, ssd_mib: int = 1000, **changes: Any) -> CacheBudgetSpec:
    base = CacheBudgetSpec(**changes)
    hot = base.hot.model_copy(
        update={"size": Quantity(text=f"{hot_mib}Mi", bytes=hot_mib * MIB), "enabled": hot_mib > 0}
    )
    ssd = base.ssd.model_copy(
        update={"size": Quantity(text=f"{ssd_mib}Mi", bytes=ssd_mib * MIB), "enabled": ssd_mib > 0}
    )
    return base.model_copy(update={"hot": hot, "ssd": ssd})


class World:
    """Engines that keep what they are told."""

    def __init__(self, tmp_path: Path, budget: CacheBudgetSpec) -> None:
        self.memory: FreeMemory | None = PLENTY
        self.now = 0.0
        self.engines: dict[str, EngineView] = {}
        self.sent: list[tuple[str, CacheLimits]] = []
        places = CachePlaces(tmp_path / "kvcache", tmp_path / "known.json")
        self.keeper = CacheKeeper(
            CacheBook(places, budget), lambda: self.memory, clock=lambda: self.now
        )
        self.keeper.attach(self)

    def views(self) -> list[EngineView]:
        return list(self.engines.values())

    def send(self, name: str, command: Command) -> bool:
        assert isinstance(command, CacheLimits)
        self.sent.append((name, command))
        return True

    def start(self, name: str, pid: int = 1) -> CacheTerms:
        terms = self.keeper.terms(name)
        view = EngineView(make_want(name), EnginePhase.READY, pid=pid)
        self.engines[name] = replace(view, cache=CacheView(terms=terms, began=terms))
        return terms

    def holds(self, name: str, hot_mib: int) -> None:
        view = self.engines[name]
        report = CacheReport(fingerprint="f", hot_used_bytes=hot_mib * MIB)
        self.engines[name] = replace(view, cache=replace(view.cache, report=report))

    def told(self) -> dict[str, int]:
        """The newest hot limit of each engine in MiB."""
        return {name: limits.hot_bytes // MIB for name, limits in self.sent}


def test_an_engine_that_is_alone_begins_with_the_whole_size_and_is_told_nothing_twice(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, spec())
    assert world.start("a").settings.hot_bytes == 100 * MIB
    world.keeper.publish()
    world.keeper.publish()
    assert world.sent == []


def test_a_second_engine_halves_the_first_ones_share(tmp_path: Path) -> None:
    world = World(tmp_path, spec())
    world.start("a")
    assert world.start("b").settings.hot_bytes == 50 * MIB
    world.keeper.publish()
    assert world.told() == {"a": 50}
    del world.engines["b"]
    world.keeper.publish()
    assert world.told() == {"a": 100}


def test_an_edited_budget_reaches_a_running_engine_at_once(tmp_path: Path) -> None:
    world = World(tmp_path, spec())
    world.start("a")
    world.keeper.set_budgets(FollowedBudget("lab", spec(hot_mib=30, ssd_mib=7)), {})
    ((name, limits),) = world.sent
    assert (name, limits.hot_bytes, limits.size_bytes) == ("a", 30 * MIB, 7 * MIB)
    world.keeper.set_budgets(FollowedBudget("lab", spec(hot_mib=30, ssd_mib=7)), {})
    assert len(world.sent) == 1


def test_switching_the_disk_tier_off_gives_its_directory_back(tmp_path: Path) -> None:
    world = World(tmp_path, spec())
    world.start("a")
    world.keeper.set_budgets(FollowedBudget("lab", spec(ssd_mib=0)), {})
    assert world.sent[-1][1].size_bytes == 0


def test_an_engines_own_budget_stands_before_the_nodes(tmp_path: Path) -> None:
    world = World(tmp_path, spec())
    own = FollowedBudget("own", spec(hot_mib=20, isolation="tenant"))
    world.keeper.set_budgets(FollowedBudget("", spec()), {"b": own})
    world.start("a")
    terms = world.start("b")
    assert (terms.budget, terms.isolated, terms.settings.hot_bytes) == ("own", True, 20 * MIB)
    assert world.keeper.book.standing("b").isolated
    assert not world.keeper.book.standing("a").isolated


def test_a_busy_node_leaves_a_hot_tier_no_room_to_grow(tmp_path: Path) -> None:
    world = World(tmp_path, spec())
    world.memory = FreeMemory(0, 1000 * MIB, 900 * MIB)
    assert world.start("a").settings.hot_bytes == 0
    world.memory = FreeMemory(20 * MIB, 1000 * MIB, 900 * MIB)
    world.keeper.publish()
    assert world.told() == {"a": 16}
    world.memory = None
    world.keeper.publish()
    assert world.told() == {"a": 100}


def test_a_cut_holds_until_the_engines_own_figures_show_it(tmp_path: Path) -> None:
    world = World(tmp_path, spec(hot_mib=200))
    world.start("a")
    world.start("b")
    world.keeper.publish()
    world.holds("a", 60)
    world.holds("b", 20)
    world.keeper.shrink(40 * MIB)
    assert world.told() == {"a": 30, "b": 10}
    assert world.keeper.size_bytes() == 40 * MIB
    assert world.keeper.coming_bytes() == 40 * MIB
    world.keeper.publish()
    assert world.told() == {"a": 30, "b": 10}
    world.holds("a", 30)
    world.holds("b", 10)
    world.now += 4
    assert world.keeper.coming_bytes() == 0
    world.keeper.publish()
    assert world.told() == {"a": 100, "b": 100}


def test_a_cut_to_nothing_empties_every_hot_tier(tmp_path: Path) -> None:
    world = World(tmp_path, spec())
    world.start("a")
    world.holds("a", 60)
    world.keeper.shrink(0)
    assert world.told() == {"a": 0}
    assert world.keeper.size_bytes() == 0
    world.keeper.shrink(0)
    assert len(world.sent) == 1


def test_a_new_process_of_an_engine_owes_nothing_of_the_old_ones_cut(tmp_path: Path) -> None:
    world = World(tmp_path, spec())
    world.start("a", pid=1)
    world.holds("a", 60)
    world.keeper.shrink(0)
    assert world.start("a", pid=2).settings.hot_bytes == 100 * MIB
    world.keeper.publish()
    assert world.told() == {"a": 0}
    assert world.keeper.size_bytes() == 0


def test_a_required_directory_must_be_there(tmp_path: Path) -> None:
    assert observe_directory_fault(tmp_path) == ""
    assert observe_directory_fault(tmp_path / "new") == ""
    assert "attach its volume" in observe_directory_fault(tmp_path / "Volumes" / "Fast" / "kv")
    file = tmp_path / "file"
    file.touch()
    assert "attach its volume" in observe_directory_fault(file / "kv")


def test_only_a_budget_that_requires_its_directory_keeps_an_engine_from_starting(
    tmp_path: Path,
) -> None:
    gone = str(tmp_path / "Volumes" / "Fast" / "kv")
    for required in (False, True):
        base = spec()
        ssd = base.ssd.model_copy(update={"directory": gone, "required": required})
        world = World(tmp_path, base.model_copy(update={"ssd": ssd}))
        assert bool(world.keeper.book.fault("a")) is required
