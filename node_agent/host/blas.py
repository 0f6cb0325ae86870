"""Where OpenBLAS is, so that engines on Linux can preload it; MLX's bundled BLAS is slow.

Looks only; whoever spawns an engine sets LD_PRELOAD.
"""

import subprocess
import sys
from pathlib import Path

_NAMES = ("libopenblas.so.0", "libopenblas.so")
_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
)


def parse_ldconfig(text: str) -> Path | None:
    """Return the OpenBLAS that `ldconfig -p` lists, the versioned name first."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, arrow, target = line.strip().partition(" => ")
        if arrow:
            found.setdefault(name.split(" ", 1)[0], target.strip())
    return next((Path(found[name]) for name in _NAMES if name in found), None)


def _run_ldconfig() -> str:
    for command in ("ldconfig", "/sbin/ldconfig"):
        try:
            done = subprocess.run(
                [command, "-p"], capture_output=True, text=True, timeout=5, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0:
            return done.stdout
    return ""


def find_openblas() -> Path | None:
    """Return the library's path on Linux, or None; macOS has Accelerate and needs none."""
    if sys.platform != "linux":
        return None
    listed = parse_ldconfig(_run_ldconfig())
    if listed is not None and listed.exists():
        return listed
    candidates = (Path(folder) / name for folder in _FOLDERS for name in _NAMES)
    return next((path for path in candidates if path.exists()), None)
