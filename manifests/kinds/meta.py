"""Metadata, conditions and ownership, as every kind carries them.

Field names and meanings are those of Kubernetes' meta/v1, so its clients read them as theirs.
Unknown fields of a spec are errors; unknown fields of a status are dropped, because an agent
may be newer than the controller that stores its report.
"""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel

GROUP = "mlxfleet.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

NAME_PATTERN = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"

Name = Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=NAME_PATTERN)]
NonNegative = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Ratio = Annotated[float, Field(gt=0, le=1)]


class Declared(BaseModel):
    """Base of everything a user writes: strict types, unknown fields refused, immutable."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=False,
        validate_by_alias=True,
        extra="forbid",
        strict=True,
        frozen=True,
    )


class Reported(BaseModel):
    """Base of everything a program reports: unknown fields ignored, immutable."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        extra="ignore",
        frozen=True,
    )


class OwnerReference(Declared):
    """The object whose deletion takes this one along."""

    api_version: str = API_VERSION
    kind: str
    name: str
    uid: str
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(Declared):
    """Identity and bookkeeping of one object; the server fills what the user leaves out."""

    name: Name | None = None
    generate_name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    generation: int | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    finalizers: list[str] = Field(default_factory=list)
    owner_references: list[OwnerReference] = Field(default_factory=list)
    managed_fields: list[dict[str, Any]] = Field(default_factory=list)
    self_link: str | None = None


class ConditionStatus(StrEnum):
    """Whether a condition holds."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(Reported):
    """One observed aspect of an object, with a machine-readable reason and a human message."""

    type: str
    status: ConditionStatus
    reason: str
    message: str = ""
    last_transition_time: str = ""
    observed_generation: int | None = None


class FleetObject(Declared):
    """What every kind has: apiVersion, kind, metadata."""

    api_version: Literal["mlxfleet.dev/v1alpha1"] = "mlxfleet.dev/v1alpha1"
    kind: str
    metadata: ObjectMeta = Field(default_factory=ObjectMeta)


def set_condition(
    conditions: tuple[Condition, ...], new: Condition, now: str
) -> tuple[Condition, ...]:
    """Return the conditions with `new` in place, its transition time kept unless status changed.

    Pure. `now` is an RFC 3339 time. The order of types is kept; a new type goes last.
    """
    previous = next((item for item in conditions if item.type == new.type), None)
    same = previous is not None and previous.status == new.status
    stamp = previous.last_transition_time if previous is not None and same else now
    placed = new.model_copy(update={"last_transition_time": stamp})
    if previous is None:
        return (*conditions, placed)
    return tuple(placed if item.type == new.type else item for item in conditions)


def find_condition(conditions: tuple[Condition, ...], type_: str) -> Condition | None:
    """Return the condition of one type, or None."""
    return next((item for item in conditions if item.type == type_), None)
