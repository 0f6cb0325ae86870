"""Writing the conditions of one object, and nothing else of its status.

Called by the reconcilers of kinds whose status has other writers too.
"""

from collections.abc import Sequence
from typing import Protocol

from controller.runtime.objects import Objects
from manifests.kinds.meta import Condition, FleetObject
from manifests.wire.status import ApiError


class Conditioned(Protocol):
    """A status that says what was seen of which generation."""

    @property
    def observed_generation(self) -> int:
        """The generation of the spec that the conditions judge."""
        ...

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """What was observed."""
        ...


async def write_conditions(
    objects: Objects,
    plural: str,
    obj: FleetObject,
    status: Conditioned,
    conditions: Sequence[Condition],
) -> None:
    """Write conditions if they changed. Raises ApiError when the spec moved on meanwhile."""
    generation = obj.metadata.generation or 0
    if status.conditions == tuple(conditions) and status.observed_generation == generation:
        return
    patch = {
        # The generation in it must be that of the spec it was judged by.
        "metadata": {"resourceVersion": obj.metadata.resource_version},
        "status": {
            "observedGeneration": generation,
            "conditions": [
                item.model_dump(mode="json", by_alias=True, exclude_none=True)
                for item in conditions
            ],
        },
    }
    try:
        await objects.patch(plural, str(obj.metadata.name), patch, subresource="status")
    except ApiError as fault:
        if fault.code != 404:
            raise
