"""What serving asks of the memory side before a request may start."""

from dataclasses import dataclass
from typing import Protocol

from manifests.errors import Refusal
from manifests.estimate import ModelShape


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
    """One request's demand on one engine. Units: tokens."""

    engine: str
    model: str
    shape: ModelShape
    prompt_tokens: int
    cached_tokens: int
    max_tokens: int
    rows: int
    chunk_tokens: int


class Reservation(Protocol):
    """Bytes promised to one admitted request."""

    def release(self) -> None:
        """Give them back; a second call does nothing."""
        ...


class Admission(Protocol):
    """The one door to memory; two requests never get the same bytes."""

    def admit(self, request: AdmissionRequest) -> Reservation | Refusal:
        """Reserve the request's peak, or say why not, in one step."""
        ...
