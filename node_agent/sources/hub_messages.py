"""What the agent and its hub process tell each other: one JSON line each way, then progress.

The agent writes one `HubRequest`; the process answers any number of `Progress` lines and ends
with `Found`, `Peeked` or `HubFailed`.
"""

from enum import StrEnum

import msgspec

from manifests.sizing.shape import ModelShape


class HubAction(StrEnum):
    """FIND looks in the cache only; PEEK reads metadata from the hub; FETCH downloads."""

    FIND = "find"
    PEEK = "peek"
    FETCH = "fetch"


class HubRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One look-up. None for `cache` and `endpoint` takes huggingface_hub's own settings."""

    action: HubAction
    repo: str
    revision: str | None = None
    cache: str | None = None
    endpoint: str | None = None


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """How far a download is. Units: bytes."""

    done_bytes: int
    total_bytes: int


class Found(msgspec.Struct, frozen=True, tag="found"):
    """The files are on this machine. None: they are not, and FIND does not fetch them."""

    directory: str | None


class Peeked(msgspec.Struct, frozen=True, tag="peeked"):
    """What the hub's metadata says; `shape` is a `ModelShape` as JSON. Units: bytes."""

    weights_bytes: int
    shape: str


class HubFailed(msgspec.Struct, frozen=True, tag="failed"):
    """Why it cannot be had; `permanent` means trying again without a change is useless."""

    message: str
    permanent: bool
    code: str


HubAnswer = Progress | Found | Peeked | HubFailed


def shape_of(peeked: Peeked) -> ModelShape:
    """Return the shape inside an answer."""
    return ModelShape.model_validate_json(peeked.shape)
