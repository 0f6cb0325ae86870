"""Model directories on this machine: what they hold, remembered until a file changes."""

import asyncio
from pathlib import Path

from manifests.sizing.weights import WeightsError, inspect_directory
from node_agent.sources.base import ModelFiles, SourceError

# Size and time of every file that the answer depends on.
Signature = tuple[tuple[str, int, int], ...]


class DirectoryReader:
    """Reads model directories; a second look at an unchanged one costs a few stat calls."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[Signature, ModelFiles]] = {}

    async def read(self, directory: Path) -> ModelFiles:
        """Return what a model directory holds. Raises: SourceError."""
        signature = await asyncio.to_thread(observe_signature, directory)
        known = self._known.get(directory)
        if known is not None and known[0] == signature:
            return known[1]
        files = await asyncio.to_thread(observe_files, directory)
        self._known[directory] = signature, files
        return files


def expand(path: str) -> Path:
    """Return a declared path as an absolute one, `~` being the agent's user."""
    try:
        return Path(path).expanduser().absolute()
    except RuntimeError as error:  # a user that does not exist
        raise SourceError(f"path {path}: {error}", code="SourceInvalid") from error


def observe_signature(directory: Path) -> Signature:
    """Return sizes and times of the files that matter. Raises: SourceError."""
    if not directory.is_dir():
        what = "is a file, not a directory" if directory.exists() else "does not exist"
        raise SourceError(f"path {directory} {what} on this node; put a model directory there")
    try:
        files = sorted([*directory.glob("*.json"), *directory.glob("*.safetensors")])
        stats = [(path.name, path.stat()) for path in files]
    except OSError as error:
        raise _unreadable(directory, error) from error
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)


def observe_files(directory: Path) -> ModelFiles:
    """Read config and headers. Raises: SourceError naming what is missing or damaged."""
    try:
        shape, weights = inspect_directory(directory)
    except WeightsError as error:
        raise SourceError(str(error), code="SourceDamaged") from error
    except ValueError as error:
        raise SourceError(f"{directory}: {error}", code="SourceUnsupported") from error
    except OSError as error:
        raise _unreadable(directory, error) from error
    return ModelFiles(
        directory=directory,
        weights_bytes=weights.bytes,
        fingerprint=weights.fingerprint,
        shape=shape,
    )


def _unreadable(directory: Path, error: OSError) -> SourceError:
    message = f"{directory} cannot be read: {error}"
    return SourceError(message, permanent=False, code="SourceUnreadable")
