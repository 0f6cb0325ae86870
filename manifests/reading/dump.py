"""Objects as YAML that every reader takes for what it is.

Owns quoting: PyYAML leaves `1e3` bare, which YAML 1.2 reads as a number. Called by the command
line to show and to export objects; manifests.reading.load reads back exactly what is written here.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from manifests.reading.yaml_scalars import read_plain

_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Dumper(_DUMPER):  # type: ignore[misc]
    """Quotes text that would read as something else, and never writes aliases."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True


def _represent_text(dumper: _Dumper, text: str) -> yaml.Node:
    reading = read_plain(text)
    mistakable = bool(reading.fault) or not isinstance(reading.value, str)
    # Only double quotes can escape what is no printable character.
    style = '"' if mistakable or not text.replace("\n", "").isprintable() else None
    node: yaml.Node = dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)
    return node


_Dumper.add_representer(str, _represent_text)


def dump_yaml(objects: Iterable[Mapping[str, Any]]) -> str:
    """Return JSON-shaped objects as YAML documents, keys in the order they have."""
    return yaml.dump_all(
        (dict(item) for item in objects), Dumper=_Dumper, sort_keys=False, allow_unicode=True
    )
