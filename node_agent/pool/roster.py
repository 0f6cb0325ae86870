"""The slots of this machine, converging on the wanted set.

Owns which engines there are: starting what is missing, stopping what is not wanted, replacing
what differs, dropping what is gone. Called by the pool, on its loop.
"""

import asyncio
from collections.abc import Iterator, Mapping

from node_agent.pool.base import EngineView, EngineWant
from node_agent.pool.lifecycle import Phase, Started, Unwanted
from node_agent.pool.run import SlotTools
from node_agent.pool.slot import Slot


class Roster:
    """Every engine, wanted or still stopping."""

    def __init__(self, tools: SlotTools) -> None:
        self._tools = tools
        self._wanted: dict[str, EngineWant] = {}
        self._slots: dict[str, Slot] = {}
        self.empty = asyncio.Event()

    def __iter__(self) -> Iterator[Slot]:
        """Go through the slots by name; they may change meanwhile."""
        return iter([self._slots[name] for name in sorted(self._slots)])

    def get(self, name: str) -> Slot | None:
        """Return an engine's slot, if there is one."""
        return self._slots.get(name)

    def views(self) -> tuple[EngineView, ...]:
        """Return every engine, sorted by name."""
        return tuple(slot.view() for slot in self)

    def want(self, wanted: Mapping[str, EngineWant]) -> None:
        """Replace the wanted set."""
        self._wanted = dict(wanted)
        self.converge()

    def dismiss(self, grace_seconds: float) -> None:
        """Want nothing, and give what runs this long to finish."""
        self._wanted = {}
        for slot in self:
            slot.handle(Unwanted(grace_seconds))
            slot.note_use()
        self.converge()

    def converge(self) -> None:
        """Start what is missing, stop what is not wanted, replace what differs."""
        for name, slot in list(self._slots.items()):
            want = self._wanted.get(name)
            if slot.state.phase is Phase.GONE:
                del self._slots[name]
                self._tools.changed()
            elif want is not None and _same_engine(want, slot.want):
                slot.want = want
            elif slot.state.phase is not Phase.DRAINING:
                stopping = slot.state.phase is Phase.STOPPING
                slot.handle(Unwanted(0 if stopping else self._tools.settings.drain_seconds))
                slot.note_use()
        for name, want in self._wanted.items():
            if name not in self._slots:
                self._slots[name] = Slot(want, self._tools)
                self._slots[name].handle(Started())
                self._tools.changed()
        if self._slots:
            self.empty.clear()
        else:
            self.empty.set()


def _same_engine(one: EngineWant, other: EngineWant) -> bool:
    return one.uid == other.uid and one.spec == other.spec
