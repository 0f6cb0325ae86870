"""Reads typed values out of a JSON object; every fault names the field.

Pure. Never puts a client's value into a message, because prompts must not come back in errors.
"""

from typing import Any, NoReturn

from manifests.errors import Code, Refusal, RequestError


def refuse(param: str, message: str, hint: str = "", code: Code = Code.INVALID_VALUE) -> NoReturn:
    """Raise RequestError about one field."""
    raise RequestError(Refusal(code, message, hint=hint, param=param))


def unsupported(param: str, hint: str = "") -> NoReturn:
    """Raise RequestError about a field or value that this server cannot honour."""
    refuse(param, f"{param} is not supported with this value.", hint, Code.UNSUPPORTED_VALUE)


class Fields:
    """A JSON object under a path; absent and null both mean the default."""

    def __init__(self, values: dict[str, Any], path: str = "") -> None:
        self._values = values
        self._path = path

    def path(self, name: str) -> str:
        """Return the full name of a field."""
        return f"{self._path}.{name}" if self._path else name

    def get(self, name: str) -> Any:
        """Return the raw value, None when absent."""
        return self._values.get(name)

    def boolean(self, name: str) -> bool | None:
        """Return true, false or None."""
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            refuse(self.path(name), f"{self.path(name)} must be true or false.")
        return value

    def integer(self, name: str, low: int, high: int) -> int | None:
        """Return a whole number in the closed range, or None."""
        value = self.get(name)
        if value is None:
            return None
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole or not low <= value <= high:
            refuse(
                self.path(name),
                f"{self.path(name)} must be a whole number from {low} to {high}.",
            )
        return int(value)

    def number(self, name: str, low: float, high: float) -> float | None:
        """Return a finite number in the closed range, or None."""
        value = self.get(name)
        if value is None:
            return None
        numeric = isinstance(value, int | float) and not isinstance(value, bool)
        # The range refuses NaN and infinities too, and integers of hundreds of digits.
        if not numeric or not low <= value <= high:
            refuse(self.path(name), f"{self.path(name)} must be a number from {low:g} to {high:g}.")
        return float(value)

    def string(self, name: str) -> str | None:
        """Return a string or None."""
        value = self.get(name)
        if value is not None and not isinstance(value, str):
            refuse(self.path(name), f"{self.path(name)} must be a string.")
        return value

    def mapping(self, name: str) -> dict[str, Any] | None:
        """Return an object or None."""
        value = self.get(name)
        if value is not None and not isinstance(value, dict):
            refuse(self.path(name), f"{self.path(name)} must be an object.")
        return value
