"""The last wanted engines on disk, so that a rebooted node serves without the controller.

Owns one file. It is written whole and renamed into place, carries a checksum, and a file that
cannot be trusted is ignored with a warning: serving nothing is better than serving garbage.
"""

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

import structlog

from manifests.kinds.engine import Engine, EngineStatus
from manifests.kinds.meta import ObjectMeta
from manifests.kinds.scheme import dump_object, parse_object

_LOG = structlog.get_logger(__name__)
_VERSION = 1


def _digest(objects: object) -> str:
    text = json.dumps(objects, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def save_engines(path: Path, node: str, engines: Iterable[Engine]) -> None:
    """Replace the file. Raises OSError."""
    objects = [dump_object(engine) for engine in engines]
    body = {"version": _VERSION, "node": node, "engines": objects, "sha256": _digest(objects)}
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", encoding="utf-8") as stream:
        json.dump(body, stream)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)


def load_engines(path: Path, node: str) -> tuple[Engine, ...]:
    """Return what was last saved for this node, or nothing when there is no trustworthy file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError) as fault:
        _LOG.warning("ignoring the saved engines: unreadable", path=str(path), fault=str(fault))
        return ()
    try:
        body = json.loads(text)
        objects = body["engines"]
        if body["version"] != _VERSION or body["sha256"] != _digest(objects):
            raise ValueError("wrong version or checksum")  # noqa: TRY301 - one way out for all
        if body["node"] != node:
            raise ValueError(f"saved for node {body['node']}")  # noqa: TRY301
        parsed = tuple(parse_object(item) for item in objects)
    except (ValueError, KeyError, TypeError) as fault:
        _LOG.warning("ignoring the saved engines: damaged", path=str(path), fault=str(fault))
        return ()
    return tuple(item for item in parsed if isinstance(item, Engine))


class SavedEngines:
    """The file of one node, written only when what it holds changes."""

    def __init__(self, path: Path, node: str) -> None:
        self._path, self._node = path, node
        self._written: tuple[Engine, ...] | None = None

    def load(self) -> dict[str, Engine]:
        """Return what ran last, by name."""
        return {item.metadata.name or "": item for item in load_engines(self._path, self._node)}

    def keep(self, engines: Iterable[Engine]) -> None:
        """Save engines, as far as their specs are concerned; a full disk costs a warning."""
        bare = tuple(engine.model_copy(update={"status": EngineStatus()}) for engine in engines)
        specs = tuple(
            item.model_copy(update={"metadata": _lasting(item.metadata)}) for item in bare
        )
        if specs == self._written:
            return
        try:
            save_engines(self._path, self._node, specs)
            self._written = specs
        except OSError as fault:
            _LOG.warning("could not save what is wanted here", fault=str(fault))


def _lasting(metadata: ObjectMeta) -> ObjectMeta:
    """Return what identifies the object and does not change with every status write."""
    return ObjectMeta(
        name=metadata.name,
        uid=metadata.uid,
        generation=metadata.generation,
        labels=metadata.labels,
        finalizers=metadata.finalizers,
    )
