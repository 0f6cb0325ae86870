"""What node and engines tell of their caches, and which budgets an agent remembers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from manifests.kinds.cache_budget import CacheBudget, CacheBudgetSpec
from manifests.kinds.engine import Engine, EnginePhase
from manifests.kinds.meta import ConditionStatus, find_condition
from manifests.kinds.node import CacheInForce
from manifests.kinds.scheme import parse_object
from node_agent.engine.messages import CacheReport, CacheSettings
from node_agent.memory.books import MemoryState
from node_agent.memory.cache_book import CacheBook
from node_agent.memory.cache_budgets import CachePlaces, FollowedBudget
from node_agent.memory.cache_keeper import CacheKeeper
from node_agent.pool.base import EngineView
from node_agent.pool.cache_side import CacheTally, CacheTerms, CacheView
from node_agent.sync.cache_figures import describe_engine_cache, describe_node_cache, hit_ratios
from node_agent.sync.cache_follower import CacheFollower
from node_agent.sync.conditions import NodeNow, plan_conditions
from tests.support.pools import make_want

GIB = 1 << 30
TERMS = CacheTerms("lab", True, settings=CacheSettings(directory="/kv", block_tokens=64))


def view(name: str = "a", terms: CacheTerms = TERMS, **report: Any) -> EngineView:
    cache = CacheView(
        terms=terms,
        began=terms,
        report=CacheReport(fingerprint="f", **report),
        tally=CacheTally(1000, 300, 200, restores=4, restore_seconds=0.5),
    )
    return EngineView(make_want(name), EnginePhase.READY, pid=1, cache=cache)


def parse(kind: str, name: str, spec: dict[str, Any]) -> Any:
    return parse_object(
        {
            "apiVersion": "mlxfleet.dev/v1alpha1",
            "kind": kind,
            "metadata": {"name": name, "uid": name},
            "spec": spec,
        }
    )


def engine(name: str, budget: str | None) -> Engine:
    spec = {"model": "m", "node": "here", "revision": "1", "source": {"path": "/m"}}
    parsed = parse("Engine", name, {**spec, "cacheBudget": budget} if budget else spec)
    assert isinstance(parsed, Engine)
    return parsed


def budget(name: str, **spec: Any) -> CacheBudget:
    parsed = parse("CacheBudget", name, spec)
    assert isinstance(parsed, CacheBudget)
    return parsed


def test_hits_are_shares_of_all_prompt_tokens_by_tier() -> None:
    assert hit_ratios(CacheTally(1000, 300, 200)) == (0.3, 0.2)
    assert hit_ratios(CacheTally()) == (0.0, 0.0)


def test_an_engines_figures_come_from_its_report_and_its_requests() -> None:
    counters = {"saves": 9.0, "saves_persisted": 7.0, "drops": 1.0, "hot_evictions": 2.0}
    found = describe_engine_cache(view(hot_used_bytes=5, ssd_blocks=3, counters=counters))
    assert found is not None
    assert (found.budget, found.block_tokens, found.fingerprint) == ("lab", 64, "f")
    assert (found.hit_ratio, found.hot_hit_ratio, found.ssd_hit_ratio) == (0.5, 0.3, 0.2)
    assert (found.tokens_saved, found.restores, found.restore_seconds) == (500, 4, 0.5)
    assert (found.saves, found.saves_persisted, found.drops, found.hot_evictions) == (9, 7, 1, 2)
    assert (found.hot_used_bytes, found.ssd_blocks) == (5, 3)


def test_an_engine_without_a_cache_tells_nothing() -> None:
    bare = EngineView(make_want(), EnginePhase.READY)
    assert describe_engine_cache(bare) is None
    assert describe_engine_cache(view(terms=CacheTerms())) is None


def test_what_an_edit_changes_only_at_the_next_start_is_said() -> None:
    running = view()
    settings = CacheSettings(directory="/other", block_tokens=32)
    edited = replace(running.cache, terms=replace(TERMS, settings=settings))
    found = describe_engine_cache(replace(running, cache=edited))
    assert found is not None
    assert found.message.startswith("ssd.directory, blockTokens of the cache budget take effect")
    same = describe_engine_cache(running)
    assert same is not None
    assert same.message == ""


def test_engines_that_share_a_directory_are_counted_once() -> None:
    elsewhere = replace(TERMS, settings=CacheSettings(directory="/elsewhere"))
    views = [
        view("a", hot_used_bytes=1, ssd_used_bytes=10, ssd_blocks=2),
        view("b", hot_used_bytes=2, ssd_used_bytes=11, ssd_blocks=3),
        view("c", terms=elsewhere, hot_used_bytes=4, ssd_used_bytes=100, ssd_blocks=7),
    ]
    found = describe_node_cache(FollowedBudget("lab", CacheBudgetSpec()), "/kv", views)
    assert (found.hot_used_bytes, found.ssd_used_bytes, found.ssd_blocks) == (7, 111, 10)
    assert (found.name, found.directory, found.ssd_size_bytes) == ("lab", "/kv", 50 * GIB)
    assert found.reason == ""


@pytest.mark.parametrize("passing", ["Starting", "Closed", "ModelNotCacheable"])
def test_a_tier_on_its_way_or_a_model_that_cannot_be_cached_is_no_fault_of_the_node(
    passing: str,
) -> None:
    lab = FollowedBudget("lab", CacheBudgetSpec())
    assert describe_node_cache(lab, "/kv", [view(state_reason=passing)]).reason == ""
    broken = view("b", state_reason="VolumeAbsent", state_message="gone")
    found = describe_node_cache(lab, "/kv", [view(state_reason=passing), broken])
    assert (found.reason, found.message) == ("VolumeAbsent", "gone")


def holds(cache: CacheInForce, type_: str) -> tuple[bool, str]:
    found = plan_conditions((), NodeNow(MemoryState(), 0, cache=cache), 1, "now")
    condition = find_condition(found, type_)
    assert condition is not None
    return condition.status is ConditionStatus.TRUE, condition.reason


def test_a_broken_disk_tier_degrades_the_node_and_a_full_volume_is_disk_pressure() -> None:
    fine = CacheInForce(directory="/kv")
    assert holds(fine, "CacheDegraded") == (False, "CacheWorks")
    assert holds(CacheInForce(), "CacheDegraded") == (False, "NoSsdTier")
    gone = CacheInForce(directory="/kv", reason="VolumeAbsent", message="gone")
    assert holds(gone, "CacheDegraded") == (True, "VolumeAbsent")
    assert holds(gone, "DiskPressure") == (False, "EnoughDisk")
    full = CacheInForce(directory="/kv", reason="DiskFull", message="full")
    assert holds(full, "CacheDegraded") == (True, "DiskFull")
    assert holds(full, "DiskPressure") == (True, "DiskFull")


def follower(tmp_path: Path) -> tuple[CacheFollower, CacheBook]:
    places = CachePlaces(tmp_path / "kvcache", tmp_path / "known.json")
    keeper = CacheKeeper(CacheBook(places, CacheBudgetSpec()), lambda: None)
    return CacheFollower(keeper, CacheBudgetSpec(), tmp_path / "budgets.json"), keeper.book


def test_an_engine_follows_the_budget_it_names_and_else_the_nodes(tmp_path: Path) -> None:
    following, book = follower(tmp_path)
    budgets = {"lab": budget("lab"), "own": budget("own", blockTokens=32, nodeSelector={"x": "y"})}
    engines = {"a": engine("a", None), "b": engine("b", "own"), "c": engine("c", "missing")}
    assert following.follow(budgets, {}, engines)
    assert [book.of(name).name for name in "abc"] == ["lab", "own", "lab"]
    assert not following.follow(budgets, {}, engines)


def test_a_restarted_agent_goes_on_under_the_budgets_it_followed_last(tmp_path: Path) -> None:
    """Without them it would evict down to its own default what a larger budget has stored."""
    following, before = follower(tmp_path)
    declared = {
        "lab": budget("lab", ssd={"size": "200Gi"}),
        "own": budget("own", hot={"size": "0"}, nodeSelector={"x": "y"}),
    }
    following.follow(declared, {}, {"b": engine("b", "own")})
    _, after = follower(tmp_path)
    assert after.node_budget == before.node_budget
    assert after.node_budget.spec.ssd.size.bytes == 200 * GIB
    assert after.of("b") == before.of("b")


def test_a_damaged_memory_of_budgets_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "budgets.json").write_text("{")
    _, book = follower(tmp_path)
    assert book.node_budget.name == ""
