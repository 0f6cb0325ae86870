"""What a model directory holds, byte by byte: the name that stored prefixes hang on.

Owns the digests of files and the file that remembers them, so that a model is hashed once and
not at every start. A hub's blob is not read: its name is the SHA-256 of its content. Hashing runs
in a thread. Called by the resolver, for engines that are declared here.
"""

import asyncio
import hashlib
import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog

from manifests.sizing.weights import CONFIG, WEIGHTS_PATTERN
from node_agent.sources.base import SourceError

_LOG = structlog.get_logger(__name__)
_VERSION = 1
_PIECE_BYTES = 4 << 20
# A file that changed this recently may change again within the same tick of its clock.
_SETTLED_SECONDS = 2.0
_MOST_REMEMBERED = 4096
_BLOB_NAME = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class FileState:
    """What tells that a file is the one that was hashed. Units: bytes, nanoseconds."""

    size_bytes: int
    mtime_ns: int
    inode: int


class _Stopped(Exception):  # noqa: N818 - a way out of hashing, not an error
    """Nobody waits for the digest any more."""


class ContentDigests:
    """Digests of model directories. Without a memory file they last as long as the process."""

    def __init__(
        self, memory_file: Path | None = None, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._memory_file, self._wall_clock = memory_file, wall_clock
        self._known: dict[str, tuple[FileState, str]] = _recall(memory_file)
        # Two engines of one model read its files once, and the disk is read by one at a time.
        self._turn = threading.Lock()

    async def of_directory(self, directory: Path) -> str:
        """Return the digest of config and weights. Raises: SourceError."""
        stop = threading.Event()
        try:
            return await asyncio.to_thread(self._observe, directory, stop)
        except OSError as fault:
            message = f"{directory} cannot be read: {fault}"
            raise SourceError(message, permanent=False, code="SourceUnreadable") from fault
        finally:
            # A cancelled caller must not leave a thread behind that reads for minutes.
            stop.set()

    def _observe(self, directory: Path, stop: threading.Event) -> str:
        digest = hashlib.sha256()
        files = [directory / CONFIG, *sorted(directory.glob(WEIGHTS_PATTERN))]
        with self._turn:
            before = dict(self._known)
            for path in files:
                name = path.name.encode()
                digest.update(len(name).to_bytes(4, "little") + name)
                digest.update(bytes.fromhex(self._digest_file(path, stop)))
            if before != self._known:
                self._remember()
        return digest.hexdigest()

    def _digest_file(self, path: Path, stop: threading.Event) -> str:
        real = path.resolve()
        if real.parent.name == "blobs" and _BLOB_NAME.fullmatch(real.name):
            return real.name
        known = self._known.get(str(real))
        if known is not None and known[0] == observe_state(real):
            return known[1]
        started_seconds = time.perf_counter()
        while True:
            before = observe_state(real)
            found = hash_file(real, stop)
            if observe_state(real) == before:
                break
        took_seconds = time.perf_counter() - started_seconds
        if took_seconds > 1:
            _LOG.info("hashed a model file", path=str(real), seconds=round(took_seconds, 1))
        if self._wall_clock() - before.mtime_ns / 1e9 > _SETTLED_SECONDS:
            self._known.pop(str(real), None)
            self._known[str(real)] = (before, found)
        return found

    def _remember(self) -> None:
        """Replace the memory file; a full disk costs a warning and time at the next start."""
        for oldest in list(self._known)[:-_MOST_REMEMBERED]:
            del self._known[oldest]
        if self._memory_file is None:
            return
        files = {
            path: {**asdict(state), "sha256": found} for path, (state, found) in self._known.items()
        }
        temporary = self._memory_file.with_suffix(".tmp")
        try:
            temporary.write_text(json.dumps({"version": _VERSION, "files": files}), "utf-8")
            temporary.replace(self._memory_file)
        except OSError as fault:
            _LOG.warning("could not remember digests of model files", fault=str(fault))


def observe_state(path: Path) -> FileState:
    """Return what a file looks like from outside. Raises: OSError."""
    seen = path.stat()
    return FileState(seen.st_size, seen.st_mtime_ns, seen.st_ino)


def hash_file(path: Path, stop: threading.Event) -> str:
    """Return the SHA-256 of a file. Raises: OSError."""
    digest = hashlib.sha256()
    piece = memoryview(bytearray(_PIECE_BYTES))
    with path.open("rb", buffering=0) as stream:
        while count := stream.readinto(piece):
            digest.update(piece[:count])
            if stop.is_set():
                raise _Stopped
    return digest.hexdigest()


def _recall(path: Path | None) -> dict[str, tuple[FileState, str]]:
    """Return what was remembered; a file that cannot be trusted costs hashing anew."""
    if path is None:
        return {}
    try:
        body = json.loads(path.read_bytes())
        if body["version"] != _VERSION:
            return {}
        return {
            str(name): (
                FileState(int(it["size_bytes"]), int(it["mtime_ns"]), int(it["inode"])),
                bytes.fromhex(it["sha256"]).hex(),
            )
            for name, it in body["files"].items()
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as fault:
        _LOG.warning("ignoring remembered digests", path=str(path), fault=str(fault))
        return {}
