"""The text side of each row of a request, before its first token. Pure.

Called by `completion.py`.
"""

from collections.abc import Sequence

from manifests.prompt.thinking import ThinkTags, choose_tags
from node_agent.serving.request import Endpoint, GenerationRequest
from node_agent.serving.rows import RowText
from node_agent.text.models import TextModel
from node_agent.text.reasoning import ReasoningSplitter
from node_agent.text.stops import StopMatcher

# More than any opening tag has, with the white space that templates put behind it.
_TAIL_TOKENS = 32


def begin_rows(
    request: GenerationRequest,
    text: TextModel,
    reasoning_parser: str,
    prompts: Sequence[Sequence[int]],
) -> list[RowText]:
    """Return a writer for each row; thinking is told apart in chats only.

    `prompts` are the client's, without what another node has said.
    """
    tags = choose_tags(reasoning_parser, text.ready.thinking)
    if request.endpoint is not Endpoint.CHAT:
        tags = None
    opened = [tags is not None and _opens(text, tags, prompt) for prompt in prompts]
    return [
        RowText(
            index,
            text.new_detokenizer(),
            StopMatcher(request.stop),
            text.ready.pieces,
            ReasoningSplitter(tags, inside=opened[index // request.choices]),
        )
        for index in range(request.rows)
    ]


def _opens(text: TextModel, tags: ThinkTags, prompt: Sequence[int]) -> bool:
    """Whether a chat template has written the opening tag, so that the model thinks at once."""
    detokenizer = text.new_detokenizer()
    tail = [detokenizer.push(token_id)[0] for token_id in prompt[-_TAIL_TOKENS:]]
    return ("".join(tail) + detokenizer.flush()).rstrip().endswith(tags.start)
