"""Any sequence of operations gives the same answers from every backend and from a plain model."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from controller.store.base import ChangeType, CompactedError, Record, Store, StoreError
from controller.store.memory import MemoryStore
from controller.store.sqlite import SqliteStore

HISTORY = 8
keys = st.sampled_from(["models/a", "models/b", "models/c", "nodes/a", "node"])
values = st.dictionaries(st.sampled_from("xyz"), st.integers(-3, 3) | st.text(max_size=3))
prefixes = st.sampled_from(["", "models/", "nodes/", "node"])


class StoreMachine(RuleBasedStateMachine):
    """Drives a memory store, a SQLite store and a dict side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "fleet.db"
        self.memory: Store = MemoryStore(history_changes=HISTORY)
        self.sqlite: Store = self.open()
        self.model: dict[str, tuple[dict[str, Any], int]] = {}
        self.log: list[tuple[ChangeType, str, dict[str, Any], int]] = []
        self.compacted = 0

    def open(self) -> Store:
        return self.runner.run(SqliteStore.open(self.path, history_changes=HISTORY))

    def teardown(self) -> None:
        self.runner.run(self.sqlite.close())
        self.runner.run(self.memory.close())
        self.runner.close()
        self.folder.cleanup()

    def both(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Return what both answer; a refusal counts by its class."""
        answers: list[Any] = []
        for store in (self.memory, self.sqlite):
            try:
                answers.append(self.runner.run(getattr(store, name)(*args, **kwargs)))
            except StoreError as refusal:
                answers.append(type(refusal))
        assert answers[0] == answers[1]
        return answers[0]

    def note(self, type_: ChangeType, record: Record) -> None:
        assert record.revision == len(self.log) + 1
        self.log.append((type_, record.key, record.value, record.revision))

    @rule(key=keys, value=values)
    def create(self, key: str, value: dict[str, Any]) -> None:
        answer = self.both("create", key, value)
        assert isinstance(answer, Record) == (key not in self.model)
        if isinstance(answer, Record):
            self.note(ChangeType.PUT, answer)
            self.model[key] = (value, answer.revision)

    @rule(key=keys, value=values, stale=st.booleans())
    def update(self, key: str, value: dict[str, Any], stale: bool) -> None:
        expected = self.model.get(key, ({}, 1))[1] - (1 if stale else 0)
        answer = self.both("update", key, value, expected_revision=expected)
        assert isinstance(answer, Record) == (key in self.model and not stale)
        if isinstance(answer, Record):
            self.note(ChangeType.PUT, answer)
            self.model[key] = (value, answer.revision)

    @rule(key=keys, stale=st.booleans())
    def delete(self, key: str, stale: bool) -> None:
        value, revision = self.model.get(key, ({}, 1))
        answer = self.both("delete", key, expected_revision=revision - (1 if stale else 0))
        assert isinstance(answer, Record) == (key in self.model and not stale)
        if isinstance(answer, Record):
            assert answer.value == value
            self.note(ChangeType.DELETE, answer)
            del self.model[key]

    @rule(prefix=prefixes, limit=st.integers(0, 3), after=st.none() | keys)
    def list(self, prefix: str, limit: int, after: str | None) -> None:
        page = self.both("list", prefix, limit=limit, after_key=after)
        wanted = [k for k in sorted(self.model) if k.startswith(prefix) and k > (after or "")]
        taken = wanted[:limit] if limit else wanted
        assert [(r.key, r.value, r.revision) for r in page.records] == [
            (key, *self.model[key]) for key in taken
        ]
        assert page.remaining == len(wanted) - len(taken)

    @precondition(lambda self: self.log)
    @rule(data=st.data())
    def compact(self, data: st.DataObject) -> None:
        self.both("compact", data.draw(st.integers(0, len(self.log))))

    @rule()
    def restart(self) -> None:
        self.runner.run(self.sqlite.close())
        self.sqlite = self.open()

    @rule(data=st.data(), prefix=prefixes)
    def replay(self, data: st.DataObject, prefix: str) -> None:
        after = data.draw(st.integers(0, len(self.log)))
        wanted = [entry for entry in self.log[after:] if entry[1].startswith(prefix)]
        for store in (self.memory, self.sqlite):
            try:
                seen = self.runner.run(self.read(store, prefix, after, len(wanted)))
            except CompactedError as gone:
                assert after < gone.oldest <= len(self.log)
                continue
            assert seen == wanted

    async def read(self, store: Store, prefix: str, after: int, count: int) -> Any:
        changes = store.watch(prefix, after_revision=after)
        seen = []
        for _ in range(count):
            change = await asyncio.wait_for(anext(changes), 5)
            seen.append(
                (change.type, change.record.key, change.record.value, change.record.revision)
            )
        await changes.aclose()  # type: ignore[attr-defined]
        return seen

    @invariant()
    def revisions_agree(self) -> None:
        assert self.both("revision") == len(self.log)


StoreMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
TestStoreMachine = StoreMachine.TestCase
