"""One fault in one field of an object, and how its path is written.

Owns the shape that validation hands to the command line and to the API. It decides nothing.
"""

from dataclasses import dataclass, field
from enum import StrEnum

Path = tuple[str | int, ...]


class ErrorCode(StrEnum):
    """What is wrong with a field, in the words Kubernetes uses for causes."""

    REQUIRED = "FieldValueRequired"
    INVALID = "FieldValueInvalid"
    NOT_SUPPORTED = "FieldValueNotSupported"
    TYPE_INVALID = "FieldValueTypeInvalid"
    UNKNOWN = "FieldUnknown"
    FORBIDDEN = "FieldValueForbidden"


def format_path(path: Path) -> str:
    """Return a path as people write it: `spec.aliases[0]`, `metadata.labels[a.dev/b]`."""
    text = ""
    for step in path:
        if isinstance(step, int) or any(mark in step for mark in "./[] ") or not step:
            text += f"[{step}]"
        else:
            text += f".{step}" if text else step
    return text


@dataclass(frozen=True, slots=True)
class FieldError:
    """A fault at one place. `suggestion` says what to write instead, or is empty."""

    path: str
    message: str
    suggestion: str = ""
    code: ErrorCode = ErrorCode.INVALID
    steps: Path = field(default=(), compare=False, repr=False)

    @classmethod
    def at(
        cls, steps: Path, message: str, suggestion: str = "", code: ErrorCode = ErrorCode.INVALID
    ) -> "FieldError":
        """Build an error from the steps of its path."""
        return cls(format_path(steps), message, suggestion, code, steps)

    @property
    def text(self) -> str:
        """The message and the suggestion in one line, without the path."""
        return f"{self.message}; {self.suggestion}" if self.suggestion else self.message

    def __str__(self) -> str:
        return f"{self.path}: {self.text}" if self.path else self.text
