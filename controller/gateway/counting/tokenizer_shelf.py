"""Models' text files on the gateway's disk, by fingerprint; bounded, and whole or not there.

Blocking: called from threads only. Owned by `tokenizers`, one instance a directory.
"""

import os
import shutil
import uuid
from collections.abc import Collection
from pathlib import Path

from manifests.prompt.bundle import unpack_bundle, write_files
from manifests.prompt.files import (
    TextFilesError,
    is_fingerprint,
    read_text_files,
    text_fingerprint,
)

_UNFINISHED = "unfinished-"


class TokenizerShelf:
    """A directory with one directory for each fingerprint; its mtime is its last use."""

    def __init__(self, directory: Path, max_bytes: int) -> None:
        """Take a directory, which is made when the first files come. Units: bytes."""
        self._directory, self._max_bytes = directory, max_bytes

    def find(self, fingerprint: str) -> Path | None:
        """Return the directory of these files; None when they are not here, or are others by now.

        Mutates: its age.
        """
        place = self._place(fingerprint)
        try:
            os.utime(place)
            sound = text_fingerprint(read_text_files(place)) == fingerprint
        except (OSError, TextFilesError):
            sound = False
        return place if sound else None

    def put(self, fingerprint: str, bundle: bytes | bytearray, used: Collection[str]) -> Path:
        """Check, write and return the files; drop others, never `used` ones, over the bound.

        Raises: BundleError, OSError; nothing of the files is left then.
        """
        files = unpack_bundle(bundle, fingerprint)
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._sweep()
        size_bytes = sum(len(content) for content in files.values())
        self._make_room(size_bytes, {*used, fingerprint})
        unfinished = self._directory / f"{_UNFINISHED}{uuid.uuid4().hex}"
        place = self._place(fingerprint)
        try:
            write_files(files, unfinished)
            if place.exists():
                self.drop(fingerprint)
            unfinished.replace(place)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        return place

    def drop(self, fingerprint: str) -> None:
        """Forget files, if they are here."""
        shutil.rmtree(self._place(fingerprint), ignore_errors=True)

    def _place(self, fingerprint: str) -> Path:
        if not is_fingerprint(fingerprint):
            raise ValueError("not a fingerprint")
        return self._directory / fingerprint

    def _sweep(self) -> None:
        """Remove what a killed process left half written; there is one writer at a time."""
        for path in self._directory.glob(_UNFINISHED + "*"):
            shutil.rmtree(path, ignore_errors=True)

    def _make_room(self, size_bytes: int, kept: Collection[str]) -> None:
        """Drop the longest unused until so much more fits."""
        held = [
            (place.stat().st_mtime_ns, place.name, _size_bytes(place))
            for place in self._directory.iterdir()
            if place.is_dir() and is_fingerprint(place.name)
        ]
        over = sum(item[2] for item in held) + size_bytes - self._max_bytes
        for _, name, bytes_ in sorted(held):
            if over <= 0:
                return
            if name not in kept:
                self.drop(name)
                over -= bytes_


def _size_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
