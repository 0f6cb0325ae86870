"""The agent's side of the tokenizer processes: one per model directory, started on demand.

Owns starting, asking and closing them. The event loop never runs a tokenizer; turning ids
into text needs none and happens here, from the table that the process sent.
"""

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import structlog
from tokenizers import Tokenizer

from manifests.errors import Code, EngineError, Refusal, RequestError, Retryable
from manifests.prompt.messages import (
    NO_LIMIT,
    EncodeChat,
    Encoded,
    EncodeTexts,
    TextCommand,
    TextRefused,
    TextReply,
    TokenizerReady,
    TooLong,
)
from manifests.prompt.process import ProcessLostError, TokenizerLink
from node_agent.sources.base import ModelFiles
from node_agent.text.detokenizer import Detokenizer, make_detokenizer

_LOG = structlog.get_logger(__name__)


class TextModel(Protocol):
    """One model's tokenizer, template and detokenizers."""

    @property
    def ready(self) -> TokenizerReady:
        """What the tokenizer said of itself when it was loaded."""
        ...

    async def encode_texts(
        self, texts: list[str], *, most_tokens: int = NO_LIMIT
    ) -> list[list[int]] | TooLong:
        """Return the ids of plain texts, or their lengths when one has more than `most_tokens`.

        Raises: EngineError when the tokenizer is lost.
        """
        ...

    async def encode_chat(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        variables: dict[str, Any],
        *,
        most_tokens: int = NO_LIMIT,
    ) -> list[int] | TooLong:
        """Return the ids of a rendered chat, or how many when they are more than `most_tokens`.

        Raises: RequestError when it cannot be rendered.
        """
        ...

    def new_detokenizer(self) -> Detokenizer:
        """Return a detokenizer for one row."""
        ...


class TextModels(Protocol):
    """Where serving gets a model's text side."""

    async def get(self, files: ModelFiles) -> TextModel:
        """Return the text side of a model, loading it first if need be. Raises EngineError."""
        ...

    def retain(self, wanted: Iterable[ModelFiles]) -> None:
        """Load what is wanted ahead of time and drop the rest."""
        ...

    def fingerprint(self, files: ModelFiles) -> str:
        """Return the name of a model's text files, empty until it is known."""
        ...

    def find_directory(self, fingerprint: str) -> Path | None:
        """Return a directory that the text files of this name were read from, if there is one."""
        ...


class TokenizerProcess:
    """A running tokenizer process; implements `TextModel`."""

    def __init__(self, link: TokenizerLink) -> None:
        self._link = link
        self.ready = link.ready
        self._decode = _token_decoder(link.ready.decoder)

    @classmethod
    async def start(cls, directory: Path) -> "TokenizerProcess":
        """Start the process and wait until it is loaded. Raises EngineError."""
        try:
            return cls(await TokenizerLink.start(directory))
        except ProcessLostError as fault:
            _LOG.warning("tokenizer_not_loaded", reason=str(fault))
            raise EngineError(
                Refusal(
                    Code.ENGINE_NOT_READY,
                    "The model's tokenizer cannot be loaded.",
                    Retryable.ELSEWHERE,
                    hint="See the agent's log for the reason.",
                )
            ) from fault

    @property
    def alive(self) -> bool:
        """Whether it still answers."""
        return self._link.alive

    async def encode_texts(
        self, texts: list[str], *, most_tokens: int = NO_LIMIT
    ) -> list[list[int]] | TooLong:
        """Return the ids of plain texts. Raises EngineError when the process is lost."""
        reply = await self._ask(
            lambda number: EncodeTexts(number=number, texts=texts, most_tokens=most_tokens)
        )
        if isinstance(reply, TooLong):
            return reply
        if isinstance(reply, Encoded):
            return reply.ids
        raise _lost()

    async def encode_chat(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        variables: dict[str, Any],
        *,
        most_tokens: int = NO_LIMIT,
    ) -> list[int] | TooLong:
        """Return the ids of a rendered chat. Raises RequestError, EngineError."""
        if not self.ready.has_chat_template:
            raise RequestError(
                Refusal(
                    Code.UNSUPPORTED_VALUE,
                    "This model has no chat template.",
                    hint="Use /v1/completions with a prompt.",
                    param="messages",
                )
            )
        reply = await self._ask(
            lambda number: EncodeChat(
                number=number,
                messages=messages,
                tools=tools,
                variables=variables,
                most_tokens=most_tokens,
            )
        )
        if isinstance(reply, TooLong):
            return reply
        if isinstance(reply, Encoded):
            return reply.ids[0]
        if isinstance(reply, TextRefused):
            message = f"The model's chat template refused the messages: {reply.message}"
            raise RequestError(Refusal(Code.INVALID_VALUE, message, param="messages"))
        raise _lost()

    def new_detokenizer(self) -> Detokenizer:
        """Return a detokenizer for one row."""
        return make_detokenizer(self.ready.plan, self.ready.pieces, self._decode)

    async def close(self) -> None:
        """End the process; requests that wait for it fail."""
        await self._link.close()

    async def _ask(self, build: Callable[[int], TextCommand]) -> TextReply:
        try:
            return await self._link.ask(build)
        except ProcessLostError as fault:
            raise _lost() from fault


class TokenizerPool:
    """All tokenizer processes of the agent; implements `TextModels`."""

    def __init__(self) -> None:
        self._starting: dict[tuple[str, str], asyncio.Task[TokenizerProcess]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def get(self, files: ModelFiles) -> TextModel:
        """Return the model's tokenizer, starting its process when there is none."""
        task = self._start(files)
        # Shielded: one client that leaves must not stop the load that others wait for.
        return await asyncio.shield(task)

    def retain(self, wanted: Iterable[ModelFiles]) -> None:
        """Start what is wanted ahead of the first request and close what no engine uses."""
        keys = set()
        for files in wanted:
            keys.add(_key(files))
            if _key(files) not in self._starting:
                self._start(files)
        for key in [key for key in self._starting if key not in keys]:
            closing = asyncio.create_task(_close_started(self._starting.pop(key)))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def fingerprint(self, files: ModelFiles) -> str:
        """Return the name of a model's text files, empty until its tokenizer is loaded."""
        task = self._starting.get(_key(files))
        return "" if task is None or not _serves(task) else task.result().ready.text_fingerprint

    def find_directory(self, fingerprint: str) -> Path | None:
        """Return a directory that the text files of this name were read from, if there is one."""
        return next(
            (
                Path(directory)
                for (directory, _), task in self._starting.items()
                if _serves(task) and task.result().ready.text_fingerprint == fingerprint
            ),
            None,
        )

    async def close(self) -> None:
        """End every process."""
        self.retain(())
        await asyncio.gather(*self._closing)

    def _start(self, files: ModelFiles) -> asyncio.Task[TokenizerProcess]:
        task = self._starting.get(_key(files))
        if task is None or _ended(task):
            task = asyncio.create_task(TokenizerProcess.start(files.directory))
            # Read the outcome even when nobody waits; the next request starts anew.
            task.add_done_callback(_ended)
            self._starting[_key(files)] = task
        return task


def _key(files: ModelFiles) -> tuple[str, str]:
    return str(files.directory), files.fingerprint


def _ended(task: asyncio.Task[TokenizerProcess]) -> bool:
    if not task.done():
        return False
    return task.cancelled() or task.exception() is not None or not task.result().alive


def _serves(task: asyncio.Task[TokenizerProcess]) -> bool:
    return task.done() and not _ended(task)


async def _close_started(task: asyncio.Task[TokenizerProcess]) -> None:
    if not task.done():
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError, EngineError):
        await (await task).close()


def _token_decoder(decoder_json: str) -> Any:
    """Return the tokenizer's decoder alone, as a function of token strings."""
    empty = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": json.loads(decoder_json),
        "model": {"type": "BPE", "vocab": {}, "merges": []},
    }
    decoder = Tokenizer.from_str(json.dumps(empty)).decoder
    return " ".join if decoder is None else decoder.decode


def _lost() -> EngineError:
    return EngineError(
        Refusal(
            Code.ENGINE_NOT_READY,
            "The model's tokenizer process ended.",
            Retryable.HERE,
            hint="It is started again by the next request.",
            retry_after_seconds=1,
        )
    )
