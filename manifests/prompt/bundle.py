"""A model's text files on their way from an agent to a gateway.

`GET /fleet/v1/tokenizers/{fingerprint}` on an agent answers one msgpack map of file names to
contents, or 404 with an OpenAI error body. The fingerprint is of the content, so whoever asks can
check what came, from whichever node. Pure, but for writing a checked bundle into a directory.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from manifests.prompt.files import (
    MAX_TOTAL_BYTES,
    TEMPLATES_DIRECTORY,
    is_text_file,
    text_fingerprint,
)

TOKENIZERS_PATH = "/fleet/v1/tokenizers/{fingerprint}"
MAX_BUNDLE_BYTES = MAX_TOTAL_BYTES + 64 * 1024

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[str, bytes]).decode


class BundleError(Exception):
    """What came is not what was asked for; the message says how."""


def pack_bundle(files: Mapping[str, bytes]) -> bytes:
    """Return the files as one body."""
    return _encode(dict(files))


def unpack_bundle(raw: bytes | bytearray, fingerprint: str) -> dict[str, bytes]:
    """Return the files of a body, checked against their fingerprint. Raises BundleError."""
    try:
        files = _decode(raw)
    except (msgspec.DecodeError, msgspec.ValidationError) as fault:
        raise BundleError("the body is no bundle of files") from fault
    foreign = [name for name in files if not is_text_file(name)]
    if foreign:
        raise BundleError(f"{len(foreign)} files of it are none of a tokenizer's")
    if text_fingerprint(files) != fingerprint:
        raise BundleError("the files have another fingerprint")
    return files


def write_files(files: Mapping[str, bytes], directory: Path) -> None:
    """Write checked files into a new directory. Raises OSError, ValueError for a foreign name."""
    directory.mkdir(parents=True)
    for name, content in files.items():
        if not is_text_file(name):
            raise ValueError("not the name of a text file")
        if name.startswith(TEMPLATES_DIRECTORY):
            (directory / TEMPLATES_DIRECTORY).mkdir(exist_ok=True)
        (directory / name).write_bytes(content)
