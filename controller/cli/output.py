"""How answers look: tables, YAML, JSON and names on stdout; everything else on stderr."""

import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from rich.console import Console

from controller.cli.exits import CliError
from controller.cli.targets import reference
from manifests.kinds.scheme import Kind
from manifests.reading.dump import dump_yaml


class OutputFormat(StrEnum):
    """The value of -o."""

    TABLE = "table"
    WIDE = "wide"
    YAML = "yaml"
    JSON = "json"
    NAME = "name"


# Colour only where a person looks; NO_COLOR and pipes are honoured by rich.
stderr = Console(stderr=True, highlight=False, soft_wrap=True)
stdout = Console(highlight=False, soft_wrap=True)


def say(line: str = "") -> None:
    """Print one line of data on stdout."""
    sys.stdout.write(line + "\n")


def note(line: str) -> None:
    """Print one line for people on stderr; never part of the data."""
    stderr.print(line, markup=False)


def think(text: str) -> None:
    """Print some of a model's thinking, for people at a terminal only."""
    if sys.stderr.isatty():
        stderr.print(text, markup=False, style="dim", end="")


def show_error(error: CliError) -> None:
    """Print an error and what helps against it on stderr."""
    stderr.print("[bold red]error:[/] ", end="")
    stderr.print(error.message, markup=False)
    if error.hint:
        stderr.print(f"  {error.hint}", markup=False, style="dim")


def align(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table, columns padded by three spaces as kubectl does. Pure."""
    lines = [list(header), *[list(row) for row in rows]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    return [
        "   ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]


def table_lines(table: dict[str, Any], *, wide: bool, prefix: str = "") -> list[str]:
    """Return the lines of a server-made Table; priority columns only when wide. Pure."""
    columns = table["columnDefinitions"]
    kept = [i for i, column in enumerate(columns) if wide or not column.get("priority")]
    header = [str(columns[i]["name"]).upper() for i in kept]
    rows = []
    for row in table.get("rows") or []:
        cells = ["" if row["cells"][i] is None else str(row["cells"][i]) for i in kept]
        cells[0] = prefix + cells[0]
        rows.append(cells)
    return align(header, rows)


def drop_noise(obj: dict[str, Any]) -> dict[str, Any]:
    """Return the object without what only the server cares about. Pure."""
    metadata = {key: value for key, value in obj.get("metadata", {}).items() if value}
    metadata.pop("managedFields", None)
    return {**obj, "metadata": metadata}


def show_objects(
    objects: list[dict[str, Any]], kinds: list[Kind], fmt: OutputFormat, *, single: bool
) -> None:
    """Print objects as YAML, JSON or names; one alone is printed bare, several as a List."""
    if fmt is OutputFormat.NAME:
        for obj, kind in zip(objects, kinds, strict=True):
            say(reference(kind, obj["metadata"]["name"]))
        return
    clean = [drop_noise(obj) for obj in objects]
    shown: Any = clean[0] if single else {"apiVersion": "v1", "kind": "List", "items": clean}
    if fmt is OutputFormat.JSON:
        say(json.dumps(shown, indent=2, ensure_ascii=False))
    else:
        sys.stdout.write(dump_yaml([shown]))
