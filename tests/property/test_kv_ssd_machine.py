"""Any sequence of operations on the disk tier agrees with a plain model, to the byte.

The model says which block is evicted next: the least recently used one that no stored block needs
and no lease holds. Two stores share the directory, as two engines would.
"""

import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from node_agent.kvcache.block_format import encode_block
from node_agent.kvcache.ssd_budget import SsdBudget, disk_bytes
from node_agent.kvcache.ssd_room import PutOutcome
from tests.support.kv_blocks import (
    block,
    bytes_on_disk,
    long_chain,
    open_disk,
    same_content,
    wanted,
)

CHAINS = [long_chain(4, seed=seed) for seed in range(3)]
STEP = disk_bytes(encode_block(block(CHAINS[0], 0)).size_bytes)
FIXED_FOLDERS = 64 << 10

places = st.tuples(st.integers(0, 2), st.integers(0, 3))
stores = st.integers(0, 1)


class DiskMachine(RuleBasedStateMachine):
    """Two stores in one directory, and a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.disks = [open_disk(self.folder / "cache") for _ in range(2)]
        self.used: dict[tuple[int, int], int] = {}
        self.tick = 0
        self.capacity = 5
        self.leases: list[tuple[ExitStack, set[tuple[int, int]]]] = []
        self.resize(self.capacity)

    def teardown(self) -> None:
        for stack, _ in self.leases:
            stack.close()
        for disk in self.disks:
            disk.link.close()
        shutil.rmtree(self.folder)

    def touch(self, *places: tuple[int, int]) -> None:
        self.tick += 1
        self.used.update(dict.fromkeys(places, self.tick))

    def next_victim(self, spared: tuple[int, int] | None = None) -> tuple[int, int] | None:
        """Return what must be evicted next."""
        held = {place for _, places in self.leases for place in places}
        held.add(spared or (-1, -1))
        free = [
            place
            for place in self.used
            if place not in held and (place[0], place[1] + 1) not in self.used
        ]
        return min(free, key=lambda place: (self.used[place], -place[1]), default=None)

    def fit(self, blocks: int, spared: tuple[int, int] | None = None) -> bool:
        while len(self.used) > blocks:
            victim = self.next_victim(spared)
            if victim is None:
                return False
            del self.used[victim]
        return True

    @rule(store=stores, place=places)
    def put(self, store: int, place: tuple[int, int]) -> None:
        number, index = place
        parent = (number, index - 1)
        outcome = self.disks[store].store.put(block(CHAINS[number], index))
        if place in self.used:
            self.touch(place)
            assert outcome is PutOutcome.ALREADY
        elif index and parent not in self.used:
            assert outcome is PutOutcome.NO_PARENT
        elif self.capacity == 0 or not self.fit(self.capacity - 1, parent):
            assert outcome is PutOutcome.NO_ROOM
        else:
            self.touch(place)
            assert outcome is PutOutcome.STORED

    @rule(store=stores, number=st.integers(0, 2), length=st.integers(1, 4))
    def put_chain(self, store: int, number: int, length: int) -> None:
        for index in range(length):
            self.put(store=store, place=(number, index))

    @rule(store=stores, place=places)
    def get(self, store: int, place: tuple[int, int]) -> None:
        number, index = place
        found = self.disks[store].store.get(wanted(CHAINS[number], index))
        assert (found is not None) == (place in self.used)
        if found is not None:
            assert same_content(found, block(CHAINS[number], index))

    @rule(store=stores, number=st.integers(0, 2))
    def find(self, store: int, number: int) -> None:
        found = {x.index for x in self.disks[store].store.find(CHAINS[number])}
        assert found == {index for chain, index in self.used if chain == number}

    @rule(store=stores, number=st.integers(0, 2), length=st.integers(1, 4))
    def begin_restore(self, store: int, number: int, length: int) -> None:
        places = [(number, index) for index in range(length) if (number, index) in self.used]
        stack = ExitStack()
        stack.enter_context(self.disks[store].store.leased(CHAINS[number].digests[:length]))
        self.touch(*places)
        self.leases.append((stack, set(places)))

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def end_restore(self, data: st.DataObject) -> None:
        stack, _ = self.leases.pop(data.draw(st.integers(0, len(self.leases) - 1)))
        stack.close()

    @rule(blocks=st.sampled_from([0, 2, 3, 5, 6, 7]))
    def resize(self, blocks: int) -> None:
        self.capacity = blocks
        index_bytes = (self.folder / "cache" / "index.db").stat().st_size
        for disk in self.disks:
            disk.store.resize(SsdBudget(size_bytes=blocks * STEP + index_bytes))
        while self.disks[0].store.trim():
            pass
        self.fit(blocks)

    @rule(place=places)
    def damage(self, place: tuple[int, int]) -> None:
        """A damaged block is lost, and what hangs from it goes before all others."""
        if place not in self.used:
            return
        number, index = place
        self.disks[0].file(CHAINS[number], index).write_bytes(b"damaged")
        assert self.disks[1].store.get(wanted(CHAINS[number], index)) is None
        del self.used[place]
        for after in range(index + 1, 4):
            if (number, after) not in self.used:
                break
            self.used[number, after] = 0

    @precondition(lambda self: not self.leases)
    @rule(store=stores, kind=st.sampled_from(["close", "close", "close", "lose the index"]))
    def restart(self, store: int, kind: str) -> None:
        if kind == "close":
            self.disks[store].link.close()
            self.disks[store] = open_disk(self.folder / "cache", self.disks[store].link.budget)
            return
        # Order of use is lost with the index; the model keeps to what is still certain.
        for disk in self.disks:
            disk.link.close()
        (self.folder / "cache" / "index.db").unlink()
        self.disks = [open_disk(self.folder / "cache", disk.link.budget) for disk in self.disks]
        for disk in self.disks:
            assert disk.store.figures()[0].blocks == len(self.used)
        while self.disks[0].store.wipe():
            pass
        self.used.clear()

    @invariant()
    def counts_agree_with_the_disk(self) -> None:
        figures, _ = self.disks[0].store.figures()
        assert figures.blocks == len(self.used) == len(self.disks[0].blocks())
        assert figures.used_bytes == len(self.used) * STEP
        if not self.leases:
            limit = self.disks[0].link.budget.size_bytes + STEP + FIXED_FOLDERS
            assert bytes_on_disk(self.folder / "cache") <= limit


DiskMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestDiskMachine = DiskMachine.TestCase
