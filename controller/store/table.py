"""The key space in memory: current values, the revision and a bounded history of changes.

Owns the rules of create, compare-and-swap and delete, and what a watch may still ask for. It
must not do I/O and knows no event loop; both backends decide and publish through it. Values
are kept as JSON text, so no caller can change what is stored by changing what it was given.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from controller.store.base import (
    Change,
    ChangeType,
    CompactedError,
    FutureRevisionError,
    KeyExistsError,
    KeyNotFoundError,
    Page,
    Record,
    RevisionConflictError,
    StoreError,
    Value,
)

HISTORY_CHANGES = 10_000


@dataclass(frozen=True, slots=True)
class Entry:
    """One value as JSON text and the revision of its last write."""

    text: str
    revision: int


@dataclass(frozen=True, slots=True)
class Write:
    """What a caller asks for: `text` None deletes, `expected` None creates."""

    key: str
    text: str | None
    expected: int | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One accepted write. A delete's `entry` holds the last value at the delete's revision."""

    type: ChangeType
    key: str
    entry: Entry
    previous: Entry | None

    @property
    def revision(self) -> int:
        """The revision that this write took."""
        return self.entry.revision


def encode_value(value: Value) -> str:
    """Return the compact JSON text of a value.

    Raises: ValueError for what would not be read back as it was given, such as NaN, a tuple or
    an integer of more than 64 bits.
    """
    try:
        encoded = msgspec.json.encode(value)
    except (OverflowError, TypeError) as fault:
        raise ValueError(f"a value that JSON cannot hold: {fault}") from fault
    if msgspec.json.decode(encoded) != value:
        raise ValueError("a value that JSON cannot hold, such as NaN or a key that is no text")
    return encoded.decode()


def to_record(key: str, entry: Entry) -> Record:
    """Return a record with its own copy of the value."""
    return Record(key, msgspec.json.decode(entry.text), entry.revision)


def to_change(step: Step) -> Change:
    """Return a change with its own copies of the values."""
    previous = None if step.previous is None else to_record(step.key, step.previous)
    return Change(step.type, to_record(step.key, step.entry), previous)


class Table:
    """Current entries and history. Revisions are consecutive, so history is found by offset."""

    def __init__(self, history_changes: int = HISTORY_CHANGES) -> None:
        self.revision = 0
        self.compacted = 0
        self._history_changes = history_changes
        self._entries: dict[str, Entry] = {}
        self._keys: list[str] = []
        self._steps: list[Step] = []

    def load(self, entries: dict[str, Entry], steps: Sequence[Step], revision: int) -> None:
        """Take over what a file held; history starts before the first step. Mutates: self."""
        self._entries = dict(entries)
        self._keys = sorted(entries)
        self._steps = list(steps)
        self.revision = revision
        self.compacted = revision - len(steps)

    def find(self, key: str) -> Entry | None:
        """Return one entry, or None."""
        return self._entries.get(key)

    def page(self, prefix: str, *, limit: int = 0, after_key: str | None = None) -> Page:
        """Return the records under a prefix, sorted by key."""
        index = bisect_left(self._keys, prefix)
        if after_key is not None:
            index = max(index, bisect_right(self._keys, after_key))
        found: list[str] = []
        for key in self._keys[index:]:
            if not key.startswith(prefix):
                break
            found.append(key)
        taken = found[:limit] if limit else found
        left = len(found) - len(taken)
        records = tuple(to_record(key, self._entries[key]) for key in taken)
        return Page(records, self.revision, taken[-1] if left else None, left)

    def draft(self) -> "Draft":
        """Return a set of writes to decide together before they are made durable."""
        return Draft(self)

    def apply(self, steps: Iterable[Step]) -> None:
        """Make accepted writes current. Mutates: self."""
        for step in steps:
            if step.revision != self.revision + 1:
                raise StoreError(f"revision {step.revision} does not follow {self.revision}")
            if step.type is ChangeType.DELETE:
                del self._entries[step.key]
                del self._keys[bisect_left(self._keys, step.key)]
            else:
                if step.key not in self._entries:
                    insort(self._keys, step.key)
                self._entries[step.key] = step.entry
            self.revision = step.revision
            self._steps.append(step)
        # Trimming in strides keeps the cost of a write constant.
        if len(self._steps) > self._history_changes + self._history_changes // 4:
            self.compact(self.revision - self._history_changes)

    def compact(self, revision: int) -> None:
        """Forget history up to a revision. Mutates: self. Raises: FutureRevisionError."""
        if revision > self.revision:
            raise FutureRevisionError(f"revision {revision} is newer than {self.revision}")
        if revision > self.compacted:
            del self._steps[: revision - self.compacted]
            self.compacted = revision

    def steps_after(self, revision: int, limit: int) -> Sequence[Step]:
        """Return up to `limit` steps that follow a revision.

        Raises: CompactedError, FutureRevisionError.
        """
        if revision > self.revision:
            raise FutureRevisionError(f"revision {revision} is newer than {self.revision}")
        if revision < self.compacted:
            raise CompactedError(revision, self.compacted)
        offset = revision - self.compacted
        return self._steps[offset : offset + limit]


class Draft:
    """Writes decided one after the other on top of a table that does not change meanwhile."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._revision = table.revision
        self._pending: dict[str, Entry | None] = {}
        self.steps: list[Step] = []

    def add(self, write: Write) -> Step:
        """Accept one write, or raise.

        Mutates: self. Raises: KeyExistsError, KeyNotFoundError, RevisionConflictError.
        """
        pending = write.key in self._pending
        now = self._pending[write.key] if pending else self._table.find(write.key)
        if write.expected is None:
            if now is not None:
                raise KeyExistsError(f"{write.key} exists")
        elif now is None:
            raise KeyNotFoundError(f"{write.key} does not exist")
        elif now.revision != write.expected:
            raise RevisionConflictError(write.key, write.expected, now.revision)
        step = self._step(write, now)
        self._revision = step.revision
        self._pending[write.key] = None if step.type is ChangeType.DELETE else step.entry
        self.steps.append(step)
        return step

    def _step(self, write: Write, now: Entry | None) -> Step:
        revision = self._revision + 1
        if write.text is not None:
            return Step(ChangeType.PUT, write.key, Entry(write.text, revision), now)
        last = "null" if now is None else now.text
        return Step(ChangeType.DELETE, write.key, Entry(last, revision), now)
