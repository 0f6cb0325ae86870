"""What a source becomes on this machine, and how it fails to.

The pool resolves sources, the text side reads the same directory; neither knows how it came here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from manifests.kinds.model import Source
from manifests.sizing.estimate import ModelShape


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model directory on this machine and what its headers say.

    `fingerprint` is of headers and samples, known at once. `content` is of every byte of weights
    and config, the same wherever they lie; empty when it was not asked for.
    """

    directory: Path
    weights_bytes: int
    fingerprint: str
    shape: ModelShape
    content: str = ""


class SourceResolver(Protocol):
    """Turns a declared source into a directory on this machine."""

    async def resolve(self, source: Source, progress: Callable[[int, int], None]) -> ModelFiles:
        """Return the files, downloading them if need be. Raises SourceError."""
        ...


class SourceError(Exception):
    """The source cannot be had here; `permanent` means retrying without a change is useless."""

    def __init__(
        self, message: str, *, permanent: bool = True, code: str = "SourceNotFound"
    ) -> None:
        super().__init__(message)
        self.message, self.permanent, self.code = message, permanent, code
