"""The small files of a model directory that decide how text becomes token ids, and their name.

Owns which files those are, how they are read safely, and the fingerprint by which agents and
gateways name them. Never reads weights, nor anything outside the model's directory but the blobs
of the hub cache that its links point to. Called by the tokenizer process and the agent's route.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path

TEXT_FILE_NAMES = (
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "config.json",
    "merges.txt",
    "special_tokens_map.json",
    "spiece.model",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
)
"""All that transformers reads to make a tokenizer and its template, but for code."""

TEMPLATES_DIRECTORY = "additional_chat_templates"
MAX_FILE_BYTES = 64 * 1024 * 1024
MAX_TOTAL_BYTES = 128 * 1024 * 1024
MAX_TEMPLATES = 16

_TEMPLATE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}\.jinja")
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")
# Precisions of one model differ in these alone, and no tokenizer reads them.
_PRECISION_KEYS = ("quantization", "quantization_config")
_HUB_BLOBS = "blobs"
_TAG = b"mlxfleet text files 1\0"


class TextFilesError(Exception):
    """The files cannot be told of; the message names the file and why, never its content."""


def is_text_file(name: str) -> bool:
    """Whether a relative name is one of a model's text files; no other name is ever opened."""
    head, slash, tail = name.partition("/")
    if not slash:
        return name in TEXT_FILE_NAMES
    return head == TEMPLATES_DIRECTORY and _TEMPLATE.fullmatch(tail) is not None


def is_fingerprint(text: str) -> bool:
    """Whether a text has the form of a fingerprint."""
    return _FINGERPRINT.fullmatch(text) is not None


def read_text_files(directory: Path) -> dict[str, bytes]:
    """Return the text files of a model directory by name. Raises TextFilesError.

    Of config.json only what may matter to text is kept, so that the precisions of one model
    have the same files.
    """
    root = directory.resolve()
    found: dict[str, bytes] = {}
    total_bytes = 0
    for name in (*TEXT_FILE_NAMES, *_template_names(root)):
        content = _read(root, name)
        if content is None:
            continue
        total_bytes += len(content)
        if total_bytes > MAX_TOTAL_BYTES:
            raise TextFilesError(f"{name}: the text files are larger than {MAX_TOTAL_BYTES} bytes")
        found[name] = _without_precision(content) if name == "config.json" else content
    return found


def text_fingerprint(files: Mapping[str, bytes]) -> str:
    """Return the name of these files' content: equal files make equal ids."""
    digest = hashlib.sha256(_TAG)
    for name, content in sorted(files.items()):
        raw = name.encode()
        digest.update(len(raw).to_bytes(4, "little") + raw)
        digest.update(len(content).to_bytes(8, "little"))
        digest.update(content)
    return digest.hexdigest()


def _template_names(root: Path) -> list[str]:
    try:
        names = sorted(path.name for path in (root / TEMPLATES_DIRECTORY).iterdir())
    except OSError:
        return []
    named = [f"{TEMPLATES_DIRECTORY}/{name}" for name in names if _TEMPLATE.fullmatch(name)]
    if len(named) > MAX_TEMPLATES:
        raise TextFilesError(f"{TEMPLATES_DIRECTORY}: more than {MAX_TEMPLATES} templates")
    return named


def _read(root: Path, name: str) -> bytes | None:
    """Return one file, None where there is none. Raises TextFilesError."""
    try:
        real = (root / name).resolve(strict=True)
    except FileNotFoundError:
        return None
    except (OSError, RuntimeError) as fault:
        raise TextFilesError(f"{name}: cannot be read") from fault
    if not _is_ours(real, root):
        raise TextFilesError(f"{name}: a link out of the model's directory")
    try:
        if not real.is_file():
            raise TextFilesError(f"{name}: not a regular file")
        with real.open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
    except OSError as fault:
        raise TextFilesError(f"{name}: cannot be read") from fault
    if len(content) > MAX_FILE_BYTES:
        raise TextFilesError(f"{name}: larger than {MAX_FILE_BYTES} bytes")
    return content


def _is_ours(real: Path, root: Path) -> bool:
    """Whether a file lies in the directory, or among the blobs of its own hub cache entry."""
    if real.is_relative_to(root):
        return True
    # The hub cache has models--NAME/snapshots/REVISION/FILE -> models--NAME/blobs/HASH.
    return root.parent.name == "snapshots" and real.parent == root.parent.parent / _HUB_BLOBS


def _without_precision(content: bytes) -> bytes:
    try:
        config = json.loads(content)
    except ValueError:
        return content
    if not isinstance(config, dict):
        return content
    kept = {key: value for key, value in config.items() if key not in _PRECISION_KEYS}
    return json.dumps(kept, sort_keys=True, separators=(",", ":")).encode()
