"""The child process that talks to the model hub: `python -m node_agent.sources.hub_process`.

A process and not a thread, because a download of many gigabytes cannot be stopped in a thread:
the agent ends this process when the engine is no longer wanted, and a later one resumes. It never
runs code from a repository and never downloads files that could hold any.
"""

import errno
import fnmatch
import json
import os
import sys
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import msgspec
from huggingface_hub import HfApi, hf_hub_download, snapshot_download
from huggingface_hub.constants import HF_HUB_CACHE
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    NotASafetensorsRepoError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
    SafetensorsParsingError,
)

from manifests.sizing.architecture import read_shape
from manifests.sizing.weights import WEIGHTS_PATTERN, dominant_dtype_bytes, inspect_directory
from node_agent.sources.hub_messages import (
    Found,
    HubAction,
    HubAnswer,
    HubFailed,
    HubRequest,
    Peeked,
    Progress,
)

# Weights, config, tokenizer and chat template; no *.py.
PATTERNS = (
    WEIGHTS_PATTERN,
    *("*.json", "*.jsonl", "*.jinja", "*.txt", "*.tiktoken"),
    *("tokenizer.model", "tiktoken.model"),
)
PROGRESS_SECONDS = 0.5


def main() -> None:
    """Serve the one request on standard input."""
    request = msgspec.json.decode(sys.stdin.buffer.readline(), type=HubRequest)
    answers = Answers(sys.stdout.buffer)
    # Anything that libraries print belongs in the agent's log, not between the answers.
    sys.stdout = sys.stderr
    try:
        answer = serve(request, answers)
    except Exception as error:  # noqa: BLE001 - root of the process; every fault must be told
        answer = failure_of(request, error)
    answers.send(answer)


class Answers:
    """The way back to the agent; a lock keeps lines of two threads apart."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def send(self, answer: HubAnswer) -> None:
        """Write one line."""
        with self._lock:
            self._stream.write(msgspec.json.encode(answer) + b"\n")
            self._stream.flush()


def serve(request: HubRequest, answers: Answers) -> HubAnswer:
    """Do what was asked. Raises whatever the hub's library raises."""
    if request.action is HubAction.PEEK:
        return peek(request)
    found = find(request)
    if found is not None or request.action is HubAction.FIND:
        return Found(found)
    return Found(fetch(request, answers))


def find(request: HubRequest) -> str | None:
    """Return the cached directory if it is complete. A branch is as it was when fetched."""
    try:
        directory = download(request, local_files_only=True)
        inspect_directory(Path(directory))
    except (LocalEntryNotFoundError, ValueError, OSError):
        return None
    return directory


def peek(request: HubRequest) -> Peeked:
    """Read config and headers over the network, and no weights."""
    config = hf_hub_download(
        request.repo,
        "config.json",
        revision=request.revision,
        cache_dir=request.cache,
        endpoint=request.endpoint,
    )
    api = HfApi(endpoint=request.endpoint)
    files = api.get_safetensors_metadata(request.repo, revision=request.revision).files_metadata
    sizes: Counter[str] = Counter()
    for file in files.values():
        for tensor in file.tensors.values():
            sizes[tensor.dtype] += tensor.data_offsets[1] - tensor.data_offsets[0]
    shape = read_shape(
        json.loads(Path(config).read_bytes()), dtype_bytes=dominant_dtype_bytes(sizes)
    )
    return Peeked(weights_bytes=sizes.total(), shape=shape.model_dump_json(by_alias=True))


def fetch(request: HubRequest, answers: Answers) -> str:
    """Download what is missing, telling how far it is."""
    api = HfApi(endpoint=request.endpoint)
    info = api.model_info(request.repo, revision=request.revision, files_metadata=True)
    wanted = [file for file in info.siblings or () if is_wanted(file.rfilename)]
    total_bytes = sum(file.size or 0 for file in wanted)
    done = threading.Event()
    watcher = threading.Thread(
        target=report, args=(blobs_directory(request), total_bytes, answers, done), daemon=True
    )
    watcher.start()
    try:
        directory = download(request, local_files_only=False)
    finally:
        done.set()
        watcher.join()
    inspect_directory(Path(directory))
    answers.send(Progress(total_bytes, total_bytes))
    return directory


def download(request: HubRequest, *, local_files_only: bool) -> str:
    """Return the snapshot's directory, from the cache or the hub."""
    return snapshot_download(
        request.repo,
        revision=request.revision,
        cache_dir=request.cache,
        endpoint=request.endpoint,
        allow_patterns=list(PATTERNS),
        local_files_only=local_files_only,
    )


def is_wanted(name: str) -> bool:
    """Say whether a repository's file is one that we download."""
    return any(fnmatch.fnmatch(name, pattern) for pattern in PATTERNS)


def blobs_directory(request: HubRequest) -> Path:
    """Return where the hub's cache keeps a repository's files, finished or not."""
    root = Path(request.cache or HF_HUB_CACHE).expanduser()
    return root / f"models--{request.repo.replace('/', '--')}" / "blobs"


def report(blobs: Path, total_bytes: int, answers: Answers, done: threading.Event) -> None:
    """Tell the size of what has arrived until `done`; runs in a thread of its own.

    When nobody listens any more, the agent is gone and the download must not outlive it.
    """
    while not done.wait(PROGRESS_SECONDS):
        try:
            answers.send(Progress(min(total_bytes, observe_size(blobs)), total_bytes))
        except BrokenPipeError:
            os._exit(1)


def observe_size(blobs: Path) -> int:
    """Return the bytes on disk of a directory that is being written to."""
    total_bytes = 0
    with suppress(FileNotFoundError):
        for path in blobs.iterdir():
            with suppress(FileNotFoundError):
                # Blocks, because an unfinished file may be created at its full size.
                total_bytes += path.stat().st_blocks * 512
    return total_bytes


def failure_of(request: HubRequest, error: Exception) -> HubFailed:
    """Say what went wrong in terms of the manifest and the node."""
    what = f"hub {request.repo}" + (f" at {request.revision}" if request.revision else "")
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return HubFailed(f"{what}: the disk is full; free some space", False, "DiskFull")
    if isinstance(error, GatedRepoError):
        message = f"{what}: needs its licence accepted and HF_TOKEN set for the agent"
        return HubFailed(message, True, "HubRefused")
    if isinstance(error, RepositoryNotFoundError | RevisionNotFoundError):
        message = f"{what}: not found; check the name, the revision, and HF_TOKEN if it is private"
        return HubFailed(message, True, "SourceNotFound")
    if isinstance(error, LocalEntryNotFoundError):
        message = f"{what}: is not in this node's cache and the hub cannot be reached"
        return HubFailed(message, False, "HubUnreachable")
    if isinstance(error, EntryNotFoundError | NotASafetensorsRepoError):
        message = f"{what}: has no config.json with safetensors; convert it to MLX first"
        return HubFailed(message, True, "SourceUnsupported")
    if isinstance(error, HFValidationError | SafetensorsParsingError | ValueError):
        return HubFailed(f"{what}: {text}", True, "SourceUnsupported")
    return HubFailed(f"{what}: {type(error).__name__}: {text}", False, "HubUnreachable")


if __name__ == "__main__":
    main()
