"""How a stream moves from one node to another: what agents tell, and how to ask for the rest.

Pure. With TELL_HEADER a gateway asks an agent to write, as comment lines of each event of a
stream, which token ids are in what that event completes: the ids told so far and the text sent so
far always belong together, so that feeding exactly these ids to a fresh detokenizer and stop
matcher gives exactly that text. The gateway takes the lines off. They are, `N` being a choice:

    :@ID CREATED FINGERPRINT ROWS   who the stream is; without this line it cannot move
    :+N 12,13                       more ids of a choice, maybe none
    :=N REASON                      the choice's text is whole; only its closing chunk is missing
    :.N                             the choice's closing chunk is in this event

When the node is lost, the gateway posts a Continuation to CONTINUE_PATH of another agent: one
line of JSON, then the client's body as it came. The answer is the rest of the same stream.
"""

from collections.abc import Sequence

from pydantic import Field, ValidationError

from manifests.kinds.meta import Reported

TELL_HEADER = "x-mlxfleet-tokens"
TELL = "1"
CONTINUE_PATH = "/fleet/v1/continue"
CONTINUE_TYPE = "application/vnd.mlxfleet.continuation"
HEAD_BYTES_MAX = 8 * 1024 * 1024
"""Longest first line that an agent reads."""

IDENTITY_MARK, TOKENS_MARK, WHOLE_MARK, ENDED_MARK = b":@", b":+", b":=", b":."
MARKS = (TOKENS_MARK, IDENTITY_MARK, WHOLE_MARK, ENDED_MARK)


class ToldRow(Reported):
    """What the client has of one choice. An empty `reason` means its text goes on."""

    ids: tuple[int, ...] = ()
    reason: str = ""
    ended: bool = False


class Continuation(Reported):
    """What is left to answer of a stream, without its body.

    `rows` has one item a choice, None for one of which the client has nothing yet.
    """

    path: str
    id: str
    created: int
    fingerprint: str = Field(description="as in system_fingerprint: ids mean nothing elsewhere")
    rows: tuple[ToldRow | None, ...]


def identity_line(id_: str, created: int, fingerprint: str, rows: int) -> bytes:
    """Return the line that begins a stream which can move."""
    return b":@%s %d %s %d\n" % (id_.encode(), created, fingerprint.encode(), rows)


def tokens_line(row: int, ids: Sequence[int]) -> bytes:
    """Return the line that tells more ids of a choice."""
    return b":+%d %s\n" % (row, ",".join(map(str, ids)).encode())


def whole_line(row: int, reason: str) -> bytes:
    """Return the line of the event that makes a choice's text whole."""
    return b":=%d %s\n" % (row, reason.encode())


def ended_line(row: int) -> bytes:
    """Return the line of a choice's closing chunk."""
    return b":.%d\n" % row


def pack(head: Continuation, body: bytes) -> bytes:
    """Return the bytes to post to CONTINUE_PATH."""
    return head.model_dump_json(by_alias=True).encode() + b"\n" + body


def unpack(data: bytes) -> tuple[Continuation, bytes]:
    """Return the head and the client's body.

    Raises: ValueError, with words that show nothing of the data.
    """
    line, found, body = data.partition(b"\n")
    if not found or len(line) > HEAD_BYTES_MAX:
        raise ValueError("The first line must be a continuation of at most 8 MiB.")
    try:
        return Continuation.model_validate_json(line), body
    except ValidationError as fault:
        places = ", ".join(".".join(map(str, item["loc"])) for item in fault.errors()[:3])
        raise ValueError(f"The continuation has bad values at: {places or 'its start'}.") from None
