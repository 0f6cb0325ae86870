"""Which cache budget holds, and what it gives each engine."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manifests.kinds.cache_budget import CacheBudget, CacheBudgetSpec
from manifests.kinds.scheme import parse_object
from node_agent.memory.cache_budgets import (
    CachePlaces,
    FollowedBudget,
    HotUse,
    choose_budget,
    plan_cut,
    plan_directory,
    plan_disk_limits,
    plan_hot_limits,
    plan_room_bytes,
    plan_shares,
    plan_terms,
)

MIB = 1 << 20
GIB = 1 << 30
PLACES = CachePlaces(Path("/data/kvcache"), Path("/data/known.json"))


def budget(name: str, created: int = 0, **spec: Any) -> CacheBudget:
    parsed = parse_object(
        {
            "apiVersion": "mlxfleet.dev/v1alpha1",
            "kind": "CacheBudget",
            "metadata": {"name": name, "creationTimestamp": f"2026-11-01T00:00:{created:02d}Z"},
            "spec": spec,
        }
    )
    assert isinstance(parsed, CacheBudget)
    return parsed


def followed(name: str = "lab", **spec: Any) -> FollowedBudget:
    return FollowedBudget(name, budget(name, **spec).spec)


def test_a_budget_that_names_labels_stands_before_one_for_every_node() -> None:
    default = CacheBudgetSpec()
    lab = budget("lab", nodeSelector={"room": "lab"})
    declared = [lab, budget("old", 1), budget("new", 2)]
    assert choose_budget(declared, {"room": "lab"}, default).name == "lab"
    assert choose_budget(declared, {"room": "office"}, default).name == "new"
    assert choose_budget([lab], {}, default) == FollowedBudget("", default)


@pytest.mark.parametrize(
    ("ssd", "directory"),
    [
        ({}, "/data/kvcache"),
        ({"directory": "/Volumes/Fast/kv"}, "/Volumes/Fast/kv"),
        ({"directory": "apart"}, "/data/apart"),
        ({"enabled": False}, ""),
        ({"size": "0"}, ""),
    ],
)
def test_blocks_go_where_the_budget_says(ssd: dict[str, Any], directory: str) -> None:
    assert plan_directory(followed(ssd=ssd).spec, PLACES) == directory


def test_engines_that_follow_one_budget_share_its_ram_evenly() -> None:
    lab, own = followed(hot={"size": "1Gi"}), followed("own", hot={"size": "256Mi"})
    off = followed("off", hot={"enabled": False})
    shares = plan_shares({"a": lab, "b": lab, "c": own, "d": off})
    assert shares == {"a": 512 * MIB, "b": 512 * MIB, "c": 256 * MIB, "d": 0}


def test_budgets_that_share_a_directory_share_the_largest_size() -> None:
    """The smaller one would otherwise evict what the larger one keeps, and nobody would gain."""
    one = followed(ssd={"size": "10Gi", "leaveFree": "5Gi"}, retention="1h")
    other = followed("b", ssd={"size": "20Gi", "leaveFree": "1Gi"}, retention="2h")
    elsewhere = followed("c", ssd={"size": "90Gi", "directory": "/other"})
    limits = plan_disk_limits([one, other, elsewhere], "/data/kvcache", PLACES)
    assert (limits.size_bytes, limits.leave_free_bytes) == (20 * GIB, 5 * GIB)
    assert limits.retention_seconds == 7200
    for_ever = followed("d")
    assert plan_disk_limits([one, for_ever], "/data/kvcache", PLACES).retention_seconds == 0


def test_a_directory_that_nobody_wants_any_more_is_given_back() -> None:
    off = followed(ssd={"enabled": False})
    assert plan_disk_limits([off], "/data/kvcache", PLACES).size_bytes == 0


def test_an_engine_is_told_all_that_its_budget_says() -> None:
    one = followed(ssd={"durable": True}, blockTokens=64, isolation="tenant")
    terms = plan_terms(one, plan_disk_limits([one], "/data/kvcache", PLACES), 7, PLACES)
    assert (terms.budget, terms.enabled, terms.isolated) == ("lab", True, True)
    told = terms.settings
    assert (told.directory, told.memory_file) == ("/data/kvcache", "/data/known.json")
    assert (told.size_bytes, told.leave_free_bytes) == (50 * GIB, 20 * GIB)
    assert (told.durable, told.block_tokens, told.hot_bytes) == (True, 64, 7)


def test_a_budget_without_any_tier_switches_the_cache_off() -> None:
    off = followed(ssd={"enabled": False}, hot={"enabled": False})
    assert not plan_terms(off, plan_disk_limits([], "", PLACES), 0, PLACES).enabled
    hot_only = followed(ssd={"enabled": False})
    assert plan_terms(hot_only, plan_disk_limits([], "", PLACES), 0, PLACES).enabled


def test_hot_tiers_grow_only_into_memory_that_stays_free_below_the_soft_mark() -> None:
    assert plan_room_bytes(headroom_bytes=500, soft_bytes=1000, used_bytes=0) == 500
    assert plan_room_bytes(headroom_bytes=5000, soft_bytes=1000, used_bytes=0) == 900
    assert plan_room_bytes(headroom_bytes=5000, soft_bytes=1000, used_bytes=1200) == 0


def test_without_room_a_hot_tier_keeps_what_it_has() -> None:
    uses = {"a": HotUse(100 * MIB, 512 * MIB), "b": HotUse(0, 512 * MIB)}
    assert plan_hot_limits(uses, 0) == {"a": 100 * MIB, "b": 0}


def test_a_hot_tier_over_its_share_gives_back_what_is_over() -> None:
    assert plan_hot_limits({"a": HotUse(100 * MIB, 64 * MIB)}, None) == {"a": 64 * MIB}
    assert plan_hot_limits({"a": HotUse(100 * MIB, 64 * MIB)}, 9 * GIB) == {"a": 64 * MIB}


USES = st.dictionaries(
    st.sampled_from("abcd"),
    st.builds(HotUse, st.integers(0, 4 * GIB), st.integers(0, 4 * GIB)),
    min_size=1,
)


@given(USES, st.integers(0, 8 * GIB))
def test_hot_tiers_never_outgrow_shares_or_room(uses: dict[str, HotUse], room_bytes: int) -> None:
    limits = plan_hot_limits(uses, room_bytes)
    growth = sum(max(0, limits[name] - use.used_bytes) for name, use in uses.items())
    assert growth <= room_bytes
    for name, use in uses.items():
        assert limits[name] <= use.share_bytes
        assert limits[name] >= min(use.used_bytes, use.share_bytes)


@given(st.dictionaries(st.sampled_from("abcd"), st.integers(0, GIB)), st.integers(0, 2 * GIB))
def test_a_cut_reaches_its_target_and_takes_from_nobody_more_than_he_holds(
    held: dict[str, int], target_bytes: int
) -> None:
    kept = plan_cut(held, target_bytes)
    assert sum(kept.values()) <= max(target_bytes, 0) or kept == held
    assert all(0 <= kept[name] <= size for name, size in held.items())
    if sum(held.values()) <= target_bytes:
        assert kept == held
