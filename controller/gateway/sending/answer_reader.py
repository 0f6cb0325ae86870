"""The answers on one connection as they come in, piece by piece; no I/O.

Owns what has been read and not been taken yet; the parsing is httptools'. A head has a bound,
interim answers (1xx) and trailers are passed over, and what nobody asked for spoils the
connection and nothing else. Called by the link, which feeds it.
"""

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from controller.gateway.http.asgi import RawHeader

HEAD_BYTES_MAX = 64 * 1024
"""Of all heads before a body, and what one read of the socket brings more."""


class AnswerReader:
    """Reads one answer after the other.

    `fault` says why an answer will not come to its end; what was read before may still be taken.
    `reusable` is whether the connection may serve again once the answer has `ended`.
    """

    def __init__(self) -> None:
        self._parser = HttpResponseParser(self)
        self.begin()

    def begin(self) -> None:
        """Expect a new answer."""
        self.status = 0
        self.headers: list[RawHeader] = []
        self.has_head = self.ended = self.reusable = False
        self.fault = ""
        self.waiting_bytes = 0
        self._parts: list[bytes] = []
        self._head_bytes = 0
        self._interim = self._until_eof = False

    def feed(self, data: bytes) -> None:
        """Take what came from the socket."""
        if self.ended or self.fault:
            self.reusable = False
            return
        if not self.has_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade):
            self.reusable = False
            if not self.ended:
                self.fault = "bytes that are no HTTP"
        if not self.has_head and self._head_bytes > HEAD_BYTES_MAX:
            self.fault = self.fault or "a head without an end"

    def end_input(self) -> None:
        """Nothing comes any more: the end of a body without a length, a fault elsewhere."""
        self.reusable = False
        if self.has_head and self._until_eof and not self.fault:
            self.ended = True
        elif not self.ended:
            self.fault = self.fault or "an early end"

    def take(self) -> bytes:
        """Return what has come of the body since the last time."""
        parts, self._parts, self.waiting_bytes = self._parts, [], 0
        return parts[0] if len(parts) == 1 else b"".join(parts)

    # What follows is called by the parser.

    def on_message_begin(self) -> None:
        """A head begins: that of our answer, or one that nobody asked for."""
        if self.ended:
            self.reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, or a trailer."""
        if not self.has_head:
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """A head is whole."""
        if self.has_head:
            return
        status = self._parser.get_status_code()
        if status < 200:
            self._interim = True
            self.headers.clear()
            return
        self.status, self.has_head = status, True
        self.reusable = self._parser.should_keep_alive()
        if not self.reusable:
            self._until_eof = not _has_length(self.headers)

    def on_body(self, data: bytes) -> None:
        """Some of the body."""
        if not self.ended:
            self._parts.append(data)
            self.waiting_bytes += len(data)

    def on_message_complete(self) -> None:
        """The body is whole, or an interim answer over."""
        if self._interim and not self.has_head:
            self._interim = False
        else:
            self.ended = True


def _has_length(headers: list[RawHeader]) -> bool:
    """Whether a body ends by itself and not with the connection."""
    for name, value in headers:
        lower = name.lower()
        if lower == b"content-length":
            return True
        if lower == b"transfer-encoding":
            return value.lower().rstrip().endswith(b"chunked")
    return False
