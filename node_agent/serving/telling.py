"""What a stream tells its gateway beside the text, so that another node can go on with it.

Pure. Called by the route that answers; manifests/wire/continuation.py has the form.
"""

from manifests.wire.continuation import ended_line, identity_line, tokens_line, whole_line
from node_agent.serving.responses import Identity
from node_agent.serving.rows import RowDelta, RowEnd


def can_move(identity: Identity) -> bool:
    """Whether the rest of such a stream can be written elsewhere.

    Log-probabilities of tokens whose text is held back would be lost on the way.
    """
    return not identity.logprobs


class Teller:
    """Puts lines in front of the events of one stream."""

    def __init__(self, identity: Identity, rows: int) -> None:
        self._begin = identity_line(
            identity.id, identity.created, identity.system_fingerprint, rows
        )

    def frame(self, item: RowDelta | RowEnd, events: list[bytes]) -> bytes:
        """Return a row's events for one item with what they tell; the last one has it all."""
        greetings = [tokens_line(item.index, ()) + event for event in events[:-1]]
        if isinstance(item, RowEnd):
            tells = tokens_line(item.index, item.ids) + ended_line(item.index)
        else:
            tells = tokens_line(item.index, item.ids)
            tells += whole_line(item.index, item.reason) if item.reason else b""
        begin, self._begin = self._begin, b""
        return begin + b"".join([*greetings, tells, events[-1]])
