"""Finds stop strings in text that comes in pieces.

Pure state machine. The text ends right before the leftmost occurrence of any stop string, however
the text was cut into pieces, and nothing that may still become part of a stop is let out.
"""

from collections.abc import Sequence


class StopMatcher:
    """One row's stop strings."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Take new text and return what is safe to send; nothing after a match."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        self._held += text
        start, stop = self._leftmost()
        pending = self._pending_start()
        if stop is not None and start <= pending:
            return self._end(start, stop)
        sendable, self._held = self._held[:pending], self._held[pending:]
        return sendable

    def flush(self) -> str:
        """Return what was held back, up to a stop; call once, when no text will follow."""
        if self.matched is not None:
            return ""
        start, stop = self._leftmost()
        if stop is not None:
            return self._end(start, stop)
        sendable, self._held = self._held, ""
        return sendable

    def _end(self, start: int, stop: str) -> str:
        self.matched = stop
        sendable, self._held = self._held[:start], ""
        return sendable

    def _leftmost(self) -> tuple[int, str | None]:
        best: tuple[int, str | None] = (len(self._held), None)
        for stop in self._stops:
            at = self._held.find(stop)
            if at >= 0 and (best[1] is None or at < best[0]):
                best = (at, stop)
        return best

    def _pending_start(self) -> int:
        """The first place from which the held text is the beginning of a stop, or its end."""
        longest = max(len(stop) for stop in self._stops)
        size = len(self._held)
        for start in range(max(0, size - longest + 1), size):
            tail = self._held[start:]
            if any(len(stop) > len(tail) and stop.startswith(tail) for stop in self._stops):
                return start
        return size
