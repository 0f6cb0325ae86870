"""What serving asks of the memory side before a request may start."""

from dataclasses import dataclass
from typing import Protocol

from manifests.errors import Refusal
from manifests.sizing.estimate import ModelShape


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
    """The one door to memory; two requests or loads never get the same bytes."""

    async def admit(
        self, request: AdmissionRequest, *, wait_seconds: float = 0.0
    ) -> Reservation | Refusal:
        """Reserve the request's peak; judging and reserving are one step on the loop.

        What can never fit is refused at once. What fits once running work ends waits in a
        bounded line, first come first served, at most `wait_seconds`; a cancelled caller
        leaves the line and holds nothing.
        """
        ...

    async def admit_load(
        self, engine: str, need_bytes: int, *, wait_seconds: float = 0.0
    ) -> Reservation | Refusal:
        """Reserve a model's bytes before its process starts; idle engines make room first.

        The reservation is released once the weights are in (they are `used` from then on) or
        the load has failed.
        """
        ...
