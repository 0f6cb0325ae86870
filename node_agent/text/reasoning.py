"""Cuts the thinking of a model out of its text, which comes in pieces.

Pure state machine. However the text was cut into pieces, the parts are the same; they hold every
character but the tags, and nothing that may still become a tag is let out.

Outside of thinking only the opening tag is a tag, inside only the closing one. A tag that stands
between two equal quotation marks (`, ", ') is quoted, and text. An answer that ends inside its
thinking, whatever the reason, has thought to its end.
"""

from dataclasses import dataclass

from manifests.prompt.thinking import ThinkTags

_QUOTES = frozenset("`\"'")


@dataclass(frozen=True, slots=True)
class Parts:
    """What a piece adds to the thinking and to the answer."""

    reasoning: str = ""
    content: str = ""


class ReasoningSplitter:
    """One row's thinking; without tags everything is content."""

    def __init__(self, tags: ThinkTags | None = None, *, inside: bool = False) -> None:
        self._tags = tags
        self._inside = inside
        self._held = ""
        # The character before the held text, in the same part.
        self._before = ""

    @property
    def held(self) -> str:
        """What was taken and is not let out yet."""
        return self._held

    def push(self, text: str) -> Parts:
        """Take new text and return what is sure to be of one part or the other."""
        if self._tags is None:
            return Parts(content=text)
        return self._cut(self._tags, text, final=False)

    def flush(self, *, capped: bool = False) -> Parts:
        """Return what was held back; call once, when no text will follow.

        With `capped` the text was cut off: two characters or more of a tag are no text then.
        """
        if self._tags is None:
            return Parts()
        if capped and len(self._held) > 1 and self._wanted(self._tags).startswith(self._held):
            self._held = ""
        return self._cut(self._tags, "", final=True)

    def _wanted(self, tags: ThinkTags) -> str:
        return tags.end if self._inside else tags.start

    def _cut(self, tags: ThinkTags, text: str, *, final: bool) -> Parts:
        self._held += text
        parts: dict[bool, list[str]] = {True: [], False: []}
        search_from = 0
        while True:
            tag = self._wanted(tags)
            at = self._held.find(tag, search_from)
            if at < 0:
                break
            after = at + len(tag)
            mark = self._held[at - 1] if at else self._before
            if mark in _QUOTES:
                if after == len(self._held) and not final:
                    parts[self._inside].append(self._let_out(at))
                    return _joined(parts)
                if self._held[after : after + 1] == mark:
                    search_from = after
                    continue
            parts[self._inside].append(self._held[:at])
            self._held, self._before = self._held[after:], ""
            self._inside, search_from = not self._inside, 0
        kept = 0 if final else _begun(tag, self._held[search_from:])
        parts[self._inside].append(self._let_out(len(self._held) - kept))
        return _joined(parts)

    def _let_out(self, size: int) -> str:
        text, self._held = self._held[:size], self._held[size:]
        self._before = text[-1:] or self._before
        return text


def _begun(tag: str, text: str) -> int:
    """Return how many characters at the end of a text are the beginning of the tag."""
    most = min(len(tag) - 1, len(text))
    return next((size for size in range(most, 0, -1) if text.endswith(tag[:size])), 0)


def _joined(parts: dict[bool, list[str]]) -> Parts:
    return Parts("".join(parts[True]), "".join(parts[False]))
