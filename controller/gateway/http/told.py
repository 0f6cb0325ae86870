"""What agents have told of one stream beside its events, for moving it; no I/O.

Holds the ids as the text they came in, since nearly no stream is ever moved. Called by the event
reader, which feeds it, and the proxy, which makes a continuation of it.
"""

from dataclasses import dataclass, field

from manifests.wire.continuation import (
    ENDED_MARK,
    IDENTITY_MARK,
    TOKENS_MARK,
    Continuation,
    ToldRow,
)

_BYTES_MAX = 4 * 1024 * 1024
"""Of ids, some half a million tokens: a longer stream does not move."""
_ROWS_MAX = 1024


@dataclass(slots=True)
class _Row:
    ids: bytearray = field(default_factory=bytearray)
    reason: bytes = b""
    ended: bool = False


class Told:
    """One stream so far; it outlives the attempts that fill it.

    `usage_sent` is set by the reader once the chunk with the usage has passed.
    """

    def __init__(self, *, include_usage: bool = False) -> None:
        self._include_usage = include_usage
        self.usage_sent = False
        self._identity: tuple[str, int, str, int] | None = None
        self._rows: dict[bytes, _Row] = {}
        self._size_bytes = 0
        self._usable = True

    @property
    def movable(self) -> bool:
        """Whether another node can go on exactly where the client's text ends."""
        return self._identity is not None and self._usable

    @property
    def complete(self) -> bool:
        """Whether the client has everything but the end mark."""
        return (
            self._identity is not None
            and (self.usage_sent or not self._include_usage)
            and len(self._rows) == self._identity[3]
            and all(row.ended for row in self._rows.values())
        )

    @property
    def tokens(self) -> int:
        """How many tokens the longest choice has."""
        return max((row.ids.count(b",") for row in self._rows.values()), default=0)

    def take(self, line: bytes) -> None:
        """Note one line of an agent, without its end; one that is not as agreed ends movability."""
        mark, (name, _, rest) = line[:2], line[2:].partition(b" ")
        row = self._rows.get(name)
        if row is None:
            if mark == IDENTITY_MARK:
                self._identify(name, rest)
                return
            if not name.isdigit() or len(self._rows) >= _ROWS_MAX:
                self._usable = False
                return
            row = self._rows[name] = _Row()
        if mark == TOKENS_MARK:
            if rest:
                self._add(row, rest)
        elif mark == ENDED_MARK:
            row.ended = True
        else:
            row.reason, self._usable = rest, self._usable and rest.isalpha()

    def _add(self, row: _Row, ids: bytes) -> None:
        if not self._usable:
            return
        row.ids += ids + b","
        self._size_bytes += len(ids) + 1
        self._usable = self._size_bytes <= _BYTES_MAX and ids.replace(b",", b"").isdigit()

    def _identify(self, id_: bytes, rest: bytes) -> None:
        try:
            created, fingerprint, rows = rest.decode().split(" ")
            identity = (id_.decode(), int(created), fingerprint, int(rows))
        except ValueError:
            self._usable = False
            return
        # Whoever continues a stream says its name again.
        named_again = self._identity in (None, identity)
        self._usable = self._usable and named_again and 0 < identity[3] <= _ROWS_MAX
        self._identity = identity

    def continuation(self, path: str) -> Continuation:
        """Return what to ask another node for.

        Raises: ValueError when the stream is not movable.
        """
        if self._identity is None or not self._usable:
            raise ValueError("this stream cannot move")
        id_, created, fingerprint, count = self._identity
        return Continuation(
            path=path,
            id=id_,
            created=created,
            fingerprint=fingerprint,
            rows=tuple(self._told_row(b"%d" % index) for index in range(count)),
        )

    def _told_row(self, name: bytes) -> ToldRow | None:
        row = self._rows.get(name)
        if row is None:
            return None
        ids = tuple(int(item) for item in bytes(row.ids).split(b",") if item)
        return ToldRow(ids=ids, reason=row.reason.decode(), ended=row.ended)
