"""Which files a list of paths stands for, and their bytes.

Owns the search in directories and reading. It parses nothing. Called by manifests.reading.load.
"""

import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

STDIN = "-"
SUFFIXES = frozenset({".yaml", ".yml", ".json"})


@dataclass(frozen=True, slots=True)
class FileBody:
    """What one file holds; `fault` says why it could not be read. `named`: given by the user."""

    name: str
    body: bytes = b""
    fault: str = ""
    named: bool = True


def read_files(
    paths: Iterable[str | Path], stdin: BinaryIO | None, limit_bytes: int
) -> Iterator[FileBody]:
    """Yield the body of each file once, directories in sorted order, at most a byte over limit.

    Hidden directories and links to directories inside a directory are not entered.
    """
    seen: set[str] = set()
    for path in map(str, paths):
        if path == STDIN:
            if path not in seen:
                stream = sys.stdin.buffer if stdin is None else stdin
                yield FileBody(STDIN, stream.read(limit_bytes + 1))
            seen.add(path)
            continue
        is_directory = Path(path).is_dir()
        found = _find_manifests(path) if is_directory else [path]
        if not found:
            yield FileBody(path, fault="holds no *.yaml, *.yml or *.json file")
        for name in found:
            real = os.path.realpath(name)
            if real not in seen:
                yield _read_file(name, limit_bytes, named=not is_directory)
            seen.add(real)


def _find_manifests(directory: str) -> list[str]:
    found: list[str] = []
    for folder, inner, names in os.walk(directory):
        inner[:] = [name for name in inner if not name.startswith(".")]
        found += [
            str(Path(folder, name))
            for name in names
            if Path(name).suffix.lower() in SUFFIXES and not name.startswith(".")
        ]
    return sorted(found)


def _read_file(name: str, limit_bytes: int, *, named: bool) -> FileBody:
    try:
        with Path(name).open("rb") as stream:
            return FileBody(name, stream.read(limit_bytes + 1), named=named)
    except (OSError, ValueError) as fault:
        reason = getattr(fault, "strerror", None) or str(fault)
        return FileBody(name, fault=f"cannot be read: {reason}", named=named)
