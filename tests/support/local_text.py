"""The text side of a model in the test's own process: the worker's functions, called directly.

What the tokenizer process does is what runs here; only the process is left out, because each
takes seconds to start. tests/behaviour/text/test_tokenizer_process.py covers it.
"""

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from manifests.errors import Code, Refusal, RequestError
from manifests.prompt.files import read_text_files, text_fingerprint
from manifests.prompt.messages import NO_LIMIT, EncodeChat, Encoded, EncodeTexts, TooLong
from manifests.prompt.worker import answer, describe, load_tokenizer
from node_agent.sources.base import ModelFiles
from node_agent.text.detokenizer import Detokenizer, make_detokenizer


class LocalText:
    """Implements TextModel."""

    def __init__(self, directory: Path) -> None:
        self.tokenizer = load_tokenizer(directory)
        self.ready = describe(self.tokenizer, directory)

    async def encode_texts(
        self, texts: list[str], *, most_tokens: int = NO_LIMIT
    ) -> list[list[int]] | TooLong:
        command = EncodeTexts(number=0, texts=texts, most_tokens=most_tokens)
        reply = answer(self.tokenizer, command)
        assert isinstance(reply, Encoded | TooLong)
        return reply.ids if isinstance(reply, Encoded) else reply

    async def encode_chat(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        variables: dict[str, Any],
        *,
        most_tokens: int = NO_LIMIT,
    ) -> list[int] | TooLong:
        command = EncodeChat(
            number=0,
            messages=messages,
            tools=tools,
            variables=variables,
            most_tokens=most_tokens,
        )
        reply = answer(self.tokenizer, command)
        if isinstance(reply, TooLong):
            return reply
        if isinstance(reply, Encoded):
            return reply.ids[0]
        raise RequestError(Refusal(Code.INVALID_VALUE, reply.message, param="messages"))

    def new_detokenizer(self) -> Detokenizer:
        backend = self.tokenizer.backend_tokenizer
        return make_detokenizer(self.ready.plan, self.ready.pieces, backend.decoder.decode)

    def ids(self, text: str) -> list[int]:
        """Return the ids of a text without special tokens."""
        return self.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: list[int]) -> str:
        """Return the tokenizer's own decoding, untouched by clean-up."""
        return self.tokenizer.backend_tokenizer.decode(ids, skip_special_tokens=True)


@cache
def local_text(directory: Path) -> LocalText:
    """Return the text side of a directory, loaded once."""
    return LocalText(directory)


class LocalTexts:
    """Implements TextModels."""

    async def get(self, files: ModelFiles) -> LocalText:
        return local_text(files.directory)

    def retain(self, wanted: Iterable[ModelFiles]) -> None:
        """Nothing is ever dropped."""

    def fingerprint(self, files: ModelFiles) -> str:
        return text_fingerprint(read_text_files(files.directory))

    def find_directory(self, fingerprint: str) -> Path | None:
        return None
