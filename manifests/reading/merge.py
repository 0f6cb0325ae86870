"""Merge patches: RFC 7386, and the three-way patch that `apply` sends.

Pure. Maps merge key by key; lists and scalars are replaced whole.
"""

import copy
from collections.abc import Mapping
from typing import Any

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def apply_merge_patch(target: Any, patch: Any) -> Any:
    """Return `target` with an RFC 7386 merge patch applied; neither argument is changed."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    merged = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = apply_merge_patch(merged.get(key), value)
    return merged


def plan_three_way_patch(
    last_applied: Mapping[str, Any], live: Mapping[str, Any], desired: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the merge patch that makes `live` say what `desired` says.

    What was applied last and is left out now is removed; what others set and this file never
    mentioned stays. An empty patch means that nothing changes.
    """
    patch: dict[str, Any] = {}
    for key, value in desired.items():
        current = live.get(key)
        if isinstance(value, Mapping):
            before = last_applied.get(key)
            inner = plan_three_way_patch(
                before if isinstance(before, Mapping) else {},
                current if isinstance(current, Mapping) else {},
                value,
            )
            if inner or not isinstance(current, Mapping):
                patch[key] = inner if isinstance(current, Mapping) else dict(value)
        elif value is not None and current != value:
            patch[key] = value
    for key in last_applied:
        if desired.get(key) is None and key in live:
            patch[key] = None
    return patch
