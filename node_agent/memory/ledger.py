"""Who was promised which bytes; the one place that adds and removes promises.

A promise is a stretch of one engine's memory line: it starts where the engine's use and its
earlier promises end, and what the engine has grown into it no longer counts as outstanding.
So memory that has materialised is counted once, in `used`, and never promised again. Called
by the arbiter only. Units: bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Promise:
    """Bytes one request or load may still allocate."""

    engine: str
    start_bytes: int
    amount_bytes: int

    def outstanding_bytes(self, used_bytes: int) -> int:
        """Return what has yet to be allocated, given the engine's use."""
        return max(0, min(self.amount_bytes, self.start_bytes + self.amount_bytes - used_bytes))


class Ledger:
    """Open promises, keyed by a number that is never used twice."""

    def __init__(self) -> None:
        self._promises: dict[int, Promise] = {}
        self._next = 1

    def __len__(self) -> int:
        return len(self._promises)

    def reserved_bytes(self, used: Mapping[str, int]) -> int:
        """Return what all promises may still allocate, given each engine's use."""
        return sum(
            item.outstanding_bytes(used.get(item.engine, 0)) for item in self._promises.values()
        )

    def engine_reserved_bytes(self, engine: str, used: Mapping[str, int]) -> int:
        """Return what one engine's promises may still allocate."""
        mine = (item for item in self._promises.values() if item.engine == engine)
        return sum(item.outstanding_bytes(used.get(engine, 0)) for item in mine)

    def headroom_bytes(self, ceiling_bytes: int, used: Mapping[str, int]) -> int:
        """Return ceiling - used - reserved; negative when the ceiling fell below the promises."""
        return ceiling_bytes - sum(used.values()) - self.reserved_bytes(used)

    def reserve(
        self, engine: str, amount_bytes: int, ceiling_bytes: int, used: Mapping[str, int]
    ) -> int | None:
        """Promise bytes and return the promise's number, or None when they do not fit.

        Mutates: adds one promise.
        """
        if amount_bytes > self.headroom_bytes(ceiling_bytes, used):
            return None
        own = used.get(engine, 0)
        ends = [
            item.start_bytes + item.amount_bytes
            for item in self._promises.values()
            if item.engine == engine
        ]
        number, self._next = self._next, self._next + 1
        self._promises[number] = Promise(engine, max([own, *ends]), max(0, amount_bytes))
        return number

    def release(self, number: int, used: Mapping[str, int]) -> bool:
        """Take a promise back; False when it was already gone.

        Mutates: removes it and stacks the engine's other promises anew, as if the released one
        had caused as much of the growth as it could: nobody knows whose memory it was, and
        believing the opposite would promise bytes twice.
        """
        gone = self._promises.pop(number, None)
        if gone is None:
            return False
        own = used.get(gone.engine, 0)
        others = {n: item for n, item in self._promises.items() if item.engine == gone.engine}
        grown = sum(
            item.amount_bytes - item.outstanding_bytes(own) for item in (gone, *others.values())
        )
        start = own - max(0, grown - gone.amount_bytes)
        for other, item in others.items():
            self._promises[other] = replace(item, start_bytes=start)
            start += item.amount_bytes
        return True
