"""Kernel panic reports of macOS.

Not run on a Mac: written from documented forms and tested with recorded ones. A report is a JSON
header line and a JSON body with a `panicString`, which names the boot that ended by its session
UUID: the proof that a boot of ours ended in a panic. Older reports are plain text. It reads and
parses only; `node_agent.sync.panics_plan` decides what a panic means.
"""

import json
import re
from pathlib import Path
from typing import Any

from manifests.times import parse_time
from node_agent.host.base import KernelPanic, PanicScan

REPORTS = Path("/Library/Logs/DiagnosticReports")
_MOST_BYTES = 4 << 20
_MOST_REPORTS = 50

_BOOT = re.compile(r"Boot session UUID:\s*([0-9A-Fa-f][0-9A-Fa-f-]*)")
_TASK = re.compile(r"Panicked task .*?: pid \d+: ([^\n]+)")
_SIGNATURE = re.compile(r"panic\(cpu \d+ caller 0x[0-9a-fA-F]+\): ([^\n]+)")
# `2026-11-20 03:14:07.00 +0000`: two decimals and a space that ISO 8601 does not have.
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d)(?:\.\d+)? ?([+-]\d{4})")


def parse_stamp(text: str) -> float:
    """Return seconds since the epoch of a report's timestamp, 0 when it is not one."""
    match = _STAMP.search(text)
    if match is None:
        return 0.0
    day, clock, zone = match.groups()
    return parse_time(f"{day}T{clock}{zone[:3]}:{zone[3:]}") or 0.0


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def parse_panic(text: str) -> KernelPanic | None:
    """Return the panic a report tells of, or None when it names no boot session."""
    header_line, _, rest = text.partition("\n")
    header, body = _object(header_line), _object(rest)
    words = body.get("panicString")
    if not isinstance(words, str):
        # Plain text, or JSON cut short: the same words, their line ends perhaps escaped.
        words = text.replace("\\n", "\n").replace('\\"', '"')
    boot = _BOOT.search(words)
    if boot is None:
        return None
    task, signature = _TASK.search(words), _SIGNATURE.search(words)
    return KernelPanic(
        boot_id=boot[1].upper(),
        signature=signature[1].strip() if signature else "unknown panic",
        task=task[1].strip() if task else "",
        epoch_seconds=parse_stamp(str(header.get("timestamp", "")) or text),
    )


def observe_panics(folder: Path) -> PanicScan:
    """Read the newest reports of a folder; what cannot be read is told, never taken as none."""
    try:
        paths = sorted(
            (path for path in folder.iterdir() if "panic" in path.name.lower()),
            key=lambda path: path.stat().st_mtime,
            reverse=True,
        )[:_MOST_REPORTS]
    except OSError as fault:
        return PanicScan(fault=f"{folder}: {fault.strerror}")
    panics: dict[str, KernelPanic] = {}
    fault_text = ""
    for path in paths:
        try:
            with path.open("rb") as file:
                text = file.read(_MOST_BYTES).decode(errors="replace")
        except OSError as fault:
            fault_text = f"{path}: {fault.strerror}"
            continue
        panic = parse_panic(text)
        if panic is not None:
            # One panic may leave a short and a full report.
            panics.setdefault(panic.boot_id, panic)
    return PanicScan(tuple(panics[key] for key in sorted(panics)), fault_text)
