"""The `Route` kind: a public model name, and which Models answer to it.

A Route's name is what clients write as `model`. It beats a Model's name of the same text, so a
canary can be put before a Model that is in use.
"""

import re
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from manifests.kinds.meta import Condition, Declared, FleetObject, Name, Reported

MOST_WEIGHT = 1_000_000
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
_LONGEST_PATTERN = 1000


class Sticky(StrEnum):
    """What keeps requests on one backend: the beginning of their prompt, or nothing."""

    NONE = "none"
    PREFIX = "prefix"


def _check_header(text: str) -> str:
    if not _HEADER.fullmatch(text):
        raise ValueError("is not the name of an HTTP header")
    return text.lower()


def _check_regex(text: str) -> str:
    if len(text) > _LONGEST_PATTERN:
        raise ValueError(f"is longer than {_LONGEST_PATTERN} characters")
    try:
        re.compile(text)
    except re.error as fault:
        raise ValueError(f"is not a regular expression: {fault}") from None
    return text


def _check_public_name(text: str) -> str:
    if not text or text != text.strip():
        raise ValueError("must be a name without spaces around it")
    return text


HeaderName = Annotated[str, AfterValidator(_check_header)]
Regex = Annotated[str, AfterValidator(_check_regex)]
PublicName = Annotated[str, AfterValidator(_check_public_name)]


class Backend(Declared):
    """A Model and its share of the requests."""

    model: Name
    weight: Annotated[int, Field(ge=0, le=MOST_WEIGHT)] = Field(
        default=1, description="share of the sum of all weights; 0 takes it out of the draw"
    )


Backends = Annotated[list[Backend], Field(min_length=1)]


class Match(Declared):
    """When a rule applies: every header named here is as it says."""

    headers: dict[HeaderName, str] = Field(
        default_factory=dict, description="the exact value of each header"
    )
    header_patterns: dict[HeaderName, Regex] = Field(
        default_factory=dict, description="a regular expression for the whole value of each header"
    )

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.headers and not self.header_patterns:
            raise ValueError("must name a header; what applies to all stands in spec.backends")
        return self


class Rule(Declared):
    """Other backends for some requests."""

    match: Match
    backends: Backends


class RouteSpec(Declared):
    """What the user declares about one public name."""

    aliases: list[PublicName] = Field(default_factory=list, description="further public names")
    backends: Backends
    rules: list[Rule] = Field(
        default_factory=list, description="the first whose match holds replaces the backends"
    )
    fallbacks: list[Name] = Field(
        default_factory=list,
        description="Models to try in turn when no backend can take a request",
    )
    sticky: Sticky = Field(
        default=Sticky.NONE,
        description="prefix: one conversation stays on one backend, by its first user message",
    )

    @property
    def model_names(self) -> tuple[str, ...]:
        """Every Model named anywhere, in order, once."""
        backends = [*self.backends, *(one for rule in self.rules for one in rule.backends)]
        return tuple(dict.fromkeys([*(one.model for one in backends), *self.fallbacks]))


class RouteStatus(Reported):
    """What the controller last saw of one route."""

    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()


class Route(FleetObject):
    """A public model name in front of Models."""

    kind: Literal["Route"] = "Route"
    spec: RouteSpec
    status: RouteStatus = Field(default_factory=RouteStatus)
