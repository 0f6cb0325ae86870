"""What tables and descriptions show of prefix caches, from values alone."""

from typing import Any

import pytest

from controller.api.columns import COLUMNS
from controller.cli.describe_node import node_cache_lines

ENGINE_CACHE = {
    "hitRatio": 0.714,
    "hotHitRatio": 0.6,
    "ssdHitRatio": 0.114,
    "tokensSaved": 2048,
    "hotUsedBytes": 12 << 20,
    "hotCapacityBytes": 1 << 30,
    "ssdUsedBytes": 3 << 30,
    "saves": 12,
    "savesPersisted": 10,
    "drops": 2,
    "hotEvictions": 3,
    "ssdEvictions": 1,
    "restores": 4,
    "restoreSeconds": 0.05,
}
NODE_CACHE = {
    "name": "lab",
    "directory": "/kv",
    "ssdUsedBytes": 3 << 30,
    "ssdSizeBytes": 200 << 30,
    "ssdLeaveFreeBytes": 50 << 30,
    "ssdBlocks": 700,
    "hotUsedBytes": 12 << 20,
    "hotSizeBytes": 1 << 30,
    "blockTokens": 256,
    "isolation": "tenant",
}


def cells(kind: str, cache: dict[str, Any] | None) -> dict[str, Any]:
    obj = {"metadata": {"name": "a"}, "spec": {}, "status": {"cache": cache}}
    return {column.name: column.read(obj, 0.0) for column in COLUMNS[kind]}


def test_a_wide_table_of_engines_tells_hits_by_tier_and_what_became_of_blocks() -> None:
    shown = cells("Engine", ENGINE_CACHE)
    assert shown["Cache-Hits"] == "71% (60% hot, 11% ssd)"
    assert (shown["Saved"], shown["Hot"], shown["SSD"]) == (2048, "12.0 MiB/1.00 GiB", "3.00 GiB")
    assert (shown["Saves"], shown["Drops"], shown["Evicted"]) == ("12/10", 2, "3/1")
    assert shown["Restore"] == "12.5ms"


@pytest.mark.parametrize("kind", ["Engine", "Node"])
def test_without_a_cache_the_cells_are_empty(kind: str) -> None:
    names = {"Cache-Hits", "Saved", "Hot", "SSD", "Saves", "Drops", "Evicted", "Restore", "Cache"}
    shown = cells(kind, None)
    assert {shown[name] for name in names & shown.keys()} == {None}


def test_a_node_tells_its_budget_its_disk_and_its_ram() -> None:
    assert cells("Node", NODE_CACHE)["Cache"] == "3.00 GiB/200 GiB"
    text = "\n".join(node_cache_lines(NODE_CACHE))
    assert "lab, blocks of 256 tokens, each tenant's prefixes apart" in text
    assert "3.00 GiB in 700 blocks of 200 GiB, leaving 50.0 GiB of the volume free, in /kv" in text
    assert "12.0 MiB held in RAM, 1.00 GiB allowed" in text
    assert "degraded" not in text


def test_a_degraded_tier_says_why_and_a_node_without_one_says_off() -> None:
    broken = {**NODE_CACHE, "reason": "VolumeAbsent", "message": "/kv is gone"}
    assert "degraded    VolumeAbsent: /kv is gone" in "\n".join(node_cache_lines(broken))
    off = {**NODE_CACHE, "directory": "", "ssdSizeBytes": 0}
    assert "  ssd         off" in node_cache_lines(off)
    assert cells("Node", off)["Cache"] == "<no ssd>"
    assert node_cache_lines({}) == []
