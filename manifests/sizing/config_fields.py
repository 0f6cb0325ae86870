"""Typed look-ups in a `config.json` and its like, with errors that name the file and the field.

Used by `architecture` and `image_tokens`.
"""

from collections.abc import Mapping
from typing import Any

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}

# No size of a model comes near this; a product of a few such numbers still is cheap.
MAX_VALUE = 1 << 40


class ConfigFields:
    """The fields of one level of a config; `prefix` is where it stands in `file`, for messages."""

    def __init__(
        self, values: Mapping[str, Any], prefix: str = "", file: str = "config.json"
    ) -> None:
        self._values = values
        self._place = f"{file}: {prefix}"

    def section(self, name: str) -> "ConfigFields":
        """Return what is nested under a name; no fields when nothing is."""
        nested = self._values.get(name)
        file, _, prefix = self._place.partition(": ")
        values = nested if isinstance(nested, Mapping) else {}
        return ConfigFields(values, prefix=f"{prefix}{name}.", file=file)

    def has(self, name: str) -> bool:
        """Say whether the field is present and not null."""
        return self._values.get(name) is not None

    def value(self, name: str) -> Any:
        """Return the field as it stands, None when absent."""
        return self._values.get(name)

    def text(self, name: str) -> str:
        """Return a non-empty string. Raises: ValueError."""
        value = self._values.get(name)
        if value is None:
            raise self.missing(name)
        if not isinstance(value, str) or not value:
            raise self.wrong(name, f"must be a non-empty string, not {value!r}")
        return value

    def names(self, name: str) -> list[str]:
        """Return a list of strings, empty when absent. Raises: ValueError."""
        value = self._values.get(name)
        if value is None:
            return []
        if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
            raise self.wrong(name, "must be a list of strings")
        return list(value)

    def optional(self, *names: str) -> int | None:
        """Return the first of several spellings that is present, None if none is.

        Raises: ValueError when it is not a whole number of zero or more.
        """
        for name in names:
            value = self._values.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise self.wrong(name, f"must be a whole number, not {value!r}")
            if value > MAX_VALUE:
                raise self.wrong(name, f"must be at most {MAX_VALUE}, not {value}")
            return value
        return None

    def integer(self, *names: str) -> int:
        """Return a positive number under the first spelling present. Raises: ValueError."""
        value = self.optional(*names)
        if value is None:
            raise self.missing(names[0])
        if value < 1:
            raise self.wrong(names[0], f"must be at least 1, not {value}")
        return value

    def dtype_bytes(self) -> int:
        """Return the size of one element of the activations; 2 when the config does not say."""
        name = self._values.get("torch_dtype", self._values.get("dtype"))
        if name is None:
            return 2
        size = DTYPE_BYTES.get(str(name).removeprefix("torch."))
        if size is None:
            raise self.wrong("torch_dtype", f"must be one of {', '.join(DTYPE_BYTES)}, not {name}")
        return size

    def missing(self, name: str) -> ValueError:
        """Return the error for a field that must be there."""
        return ValueError(f"{self._place}{name} is missing")

    def wrong(self, name: str, complaint: str) -> ValueError:
        """Return the error for a field that makes no sense."""
        return ValueError(f"{self._place}{name} {complaint}")
