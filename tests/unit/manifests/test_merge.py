"""Merge patches, as apply and the API use them."""

from hypothesis import given
from hypothesis import strategies as st

from manifests.reading.merge import apply_merge_patch, plan_three_way_patch

scalars = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["a", "b"])
keys = st.sampled_from(["x", "y", "z"])
trees = st.recursive(
    scalars, lambda inner: st.dictionaries(keys, inner, max_size=3) | st.lists(inner, max_size=2)
)
objects = st.dictionaries(keys, trees, max_size=3)


def without_nulls(value: object) -> object:
    if isinstance(value, dict):
        return {k: without_nulls(v) for k, v in value.items() if v is not None}
    return value


def test_null_removes_and_maps_merge_and_lists_are_replaced() -> None:
    target = {"a": {"b": 1, "c": 2}, "d": [1, 2]}
    assert apply_merge_patch(target, {"a": {"b": None, "e": 3}, "d": [9]}) == {
        "a": {"c": 2, "e": 3},
        "d": [9],
    }


def test_the_patched_object_shares_nothing_with_the_patch() -> None:
    patch = {"a": {"b": [1]}}
    merged = apply_merge_patch({}, patch)
    merged["a"]["b"].append(2)
    assert patch == {"a": {"b": [1]}}


def test_what_was_applied_and_left_out_is_removed() -> None:
    last = {"spec": {"replicas": 2, "labels": {"x": "1", "y": "2"}}}
    live = {"spec": {"replicas": 2, "labels": {"x": "1", "y": "2"}}}
    desired = {"spec": {"labels": {"x": "1"}}}
    patch = plan_three_way_patch(last, live, desired)
    assert patch == {"spec": {"replicas": None, "labels": {"y": None}}}


def test_what_others_set_and_the_file_never_mentioned_stays() -> None:
    live = {"spec": {"replicas": 5, "labels": {"x": "1", "c": "other"}}}
    desired = {"spec": {"labels": {"x": "1"}}}
    assert plan_three_way_patch(desired, live, desired) == {}


def test_a_field_that_drifted_is_set_back() -> None:
    desired = {"spec": {"replicas": 2}}
    assert plan_three_way_patch(desired, {"spec": {"replicas": 9}}, desired) == {
        "spec": {"replicas": 2}
    }


@given(live=objects, desired=objects)
def test_after_a_patch_the_object_says_what_was_desired(
    live: dict[str, object], desired: dict[str, object]
) -> None:
    desired = without_nulls(desired)  # type: ignore[assignment]
    live = without_nulls(live)  # type: ignore[assignment]
    merged = apply_merge_patch(live, plan_three_way_patch({}, live, desired))
    assert plan_three_way_patch(desired, merged, desired) == {}


@given(live=objects, patch=objects)
def test_a_merge_patch_is_idempotent(live: dict[str, object], patch: dict[str, object]) -> None:
    once = apply_merge_patch(live, patch)
    assert apply_merge_patch(once, patch) == once
