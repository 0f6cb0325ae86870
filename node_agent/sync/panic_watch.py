"""Keeps the memory of kernel panics: reads reports, remembers boots, follows the annotation.

Owns the file in the data directory. It decides nothing; `panics_plan` does. The monitor asks it
for the ceiling ratio, the lease keeper for the condition.
"""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import structlog

from node_agent.host.base import Host, KernelPanic
from node_agent.sync.panics_plan import (
    PanicHistory,
    PanicStanding,
    follow_annotation,
    judge_panics,
    remember_boot,
    take_in_scan,
)

_LOG = structlog.get_logger(__name__)

SCAN_SECONDS = 600.0


def encode_history(history: PanicHistory) -> str:
    """Return the file's text."""
    return json.dumps(asdict(history), indent=1) + "\n"


def decode_history(text: str) -> PanicHistory:
    """Return what a file's text holds. Raises ValueError."""
    try:
        raw: dict[str, Any] = json.loads(text)
        return PanicHistory(
            boots=tuple(str(item) for item in raw["boots"]),
            panics=tuple(KernelPanic(**item) for item in raw["panics"]),
            cleared=tuple(str(item) for item in raw["cleared"]),
            cleared_by=str(raw["cleared_by"]),
        )
    except (KeyError, TypeError) as fault:
        raise ValueError(f"not a panic history: {fault!r}") from fault


class PanicWatch:
    """The panics of this machine, as far as they concern us."""

    def __init__(
        self,
        host: Host,
        file: Path,
        changed: Callable[[], None] = lambda: None,
        epoch: Callable[[], float] = time.time,
    ) -> None:
        """`changed` is called on the loop when the verdict changed."""
        self._host, self._file, self._changed, self._epoch = host, file, changed, epoch
        self._history = self._load()
        self._fault = ""
        self._told: PanicStanding | None = None
        self._supported = False

    @property
    def standing(self) -> PanicStanding | None:
        """The verdict of this moment, or None where the system keeps no reports."""
        if not self._supported:
            return None
        return judge_panics(self._history, self._fault, self._epoch())

    @property
    def ceiling_ratio(self) -> float:
        """What is left of the ceilings."""
        standing = self.standing
        return 1.0 if standing is None else standing.ceiling_ratio

    def follow_annotation(self, value: str) -> None:
        """Take in what a person said. Mutates: the history and its file."""
        self._keep(follow_annotation(self._history, value))

    async def scan(self) -> None:
        """Read the reports once."""
        boot_id = (await asyncio.to_thread(self._host.info)).boot_id
        scan = await asyncio.to_thread(self._host.scan_panics)
        self._supported = scan is not None
        if scan is None:
            return
        self._fault = scan.fault
        history = remember_boot(self._history, boot_id)
        self._keep(take_in_scan(history, scan, self._epoch()))

    async def run(self) -> None:
        """Scan until cancelled; reports may be written long after the boot."""
        while True:
            try:
                await self.scan()
            except OSError as fault:
                _LOG.warning("panic reports not read", fault=str(fault))
            await asyncio.sleep(SCAN_SECONDS)

    def _keep(self, history: PanicHistory) -> None:
        if history != self._history:
            self._history = history
            self._save()
        standing = self.standing
        if standing != self._told:
            self._told = standing
            self._changed()

    def _load(self) -> PanicHistory:
        try:
            return decode_history(self._file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return PanicHistory()
        except (OSError, ValueError) as fault:
            _LOG.warning("panic history not read", file=str(self._file), fault=str(fault))
            return PanicHistory()

    def _save(self) -> None:
        fresh = self._file.with_name(self._file.name + ".new")
        try:
            fresh.write_text(encode_history(self._history), encoding="utf-8")
            fresh.replace(self._file)
        except OSError as fault:
            _LOG.warning("panic history not kept", file=str(self._file), fault=str(fault))
