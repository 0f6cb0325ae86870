"""The tokenizer process: `python -m manifests.prompt.worker DIRECTORY [--ids-only]`.

Owns one model's tokenizer and chat template. It is the only place that imports transformers,
because loading a tokenizer of 262k entries holds the interpreter for one to three seconds,
which no event loop can wait for (docs/adr/0006-tokenizer-process.md). Agents and gateways start
it. Reads commands from standard input, answers on standard output, ends when its input closes.
It never opens a network connection and never runs code from a model directory.
"""

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from transformers import AutoTokenizer

from manifests.prompt.body import (
    fill_empty,
    merge_variables,
    parse_chat_prompt,
    parse_text_prompts,
)
from manifests.prompt.defaults import read_defaults
from manifests.prompt.files import TextFilesError, read_text_files, text_fingerprint
from manifests.prompt.messages import (
    HEADER_BYTES,
    EncodeBody,
    EncodeChat,
    Encoded,
    EncodeTexts,
    PackedPrompts,
    TextCommand,
    TextRefused,
    TextReply,
    TokenizerReady,
    TooLong,
    decode_text_command,
    frame,
)
from manifests.prompt.pieces import build_pieces, plan_pieces
from manifests.prompt.thinking import MARK_TOKENS, find_style
from manifests.wire.prefix_chain import pack_tokens

_MESSAGE_CHARACTERS = 300
# So that a short prompt does not wait for a long one; the encoder releases the interpreter.
_THREADS = 2


def load_tokenizer(directory: Path) -> Any:
    """Return transformers' own tokenizer of a model directory. Raises ValueError or OSError."""
    tokenizer = AutoTokenizer.from_pretrained(
        str(directory), local_files_only=True, trust_remote_code=False
    )
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError("the model has no tokenizer.json; convert its tokenizer to the fast form")
    # A tokenizer.json may ask for cutting or padding; a prompt is never cut unasked.
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    return tokenizer


def describe(tokenizer: Any, directory: Path, *, ids_only: bool = False) -> TokenizerReady:
    """Return what turns ids into text without the tokenizer; without the table for ids only."""
    backend = tokenizer.backend_tokenizer
    decoder = json.loads(backend.decoder.__getstate__()) if backend.decoder else None
    plan = plan_pieces(decoder)
    added = backend.get_added_tokens_decoder()
    special = sorted(number for number, token in added.items() if token.special)
    unseen = frozenset(number for number in special if added[number].content not in MARK_TOKENS)
    size = max([backend.get_vocab_size(with_added_tokens=True), *(n + 1 for n in added)])
    tokens = [] if ids_only else [backend.id_to_token(number) for number in range(size)]
    return TokenizerReady(
        plan=plan,
        pieces=build_pieces(plan, tokens, unseen),
        decoder=json.dumps(decoder),
        special_ids=special,
        bos_token_id=tokenizer.bos_token_id,
        has_chat_template=bool(tokenizer.chat_template),
        defaults=read_defaults(directory, tokenizer.eos_token_id),
        text_fingerprint=_fingerprint(directory),
        thinking=find_style(backend.get_vocab(with_added_tokens=True), _template_text(tokenizer)),
    )


def _template_text(tokenizer: Any) -> str:
    """Return the chat template, or all of them where a model has several by name."""
    template = tokenizer.chat_template or ""
    return "\n".join(template.values()) if isinstance(template, dict) else str(template)


def answer(tokenizer: Any, command: TextCommand) -> TextReply:
    """Return the reply to one command."""
    if isinstance(command, EncodeTexts):
        return _within(command, _encode_texts(tokenizer, command.texts))
    try:
        if isinstance(command, EncodeBody):
            prompts = [pack_tokens(ids) for ids in _encode_body(tokenizer, command)]
            return PackedPrompts(number=command.number, prompts=prompts)
        ids = _encode_chat(tokenizer, command.messages, command.tools, command.variables)
        return _within(command, [ids])
    except Exception as error:  # noqa: BLE001  templates are foreign code; any fault is an answer
        reason = str(error).strip()[:_MESSAGE_CHARACTERS] or type(error).__name__
        return TextRefused(number=command.number, message=reason)


def _within(command: EncodeTexts | EncodeChat, ids: list[list[int]]) -> Encoded | TooLong:
    tokens = [len(one) for one in ids]
    if max(tokens, default=0) > command.most_tokens:
        return TooLong(number=command.number, tokens=tokens)
    return Encoded(number=command.number, ids=ids)


def _encode_body(tokenizer: Any, command: EncodeBody) -> list[list[int]]:
    """Return the ids of every prompt of a body, as the agent finds them. Raises what it raises."""
    body = msgspec.json.decode(command.body)
    if command.chat:
        if not tokenizer.chat_template:
            raise ValueError("this model has no chat template")
        chat = parse_chat_prompt(body)
        merged = merge_variables(msgspec.json.decode(command.variables), chat.variables)
        return [_encode_chat(tokenizer, chat.messages, chat.tools, merged)]
    prompts = parse_text_prompts(body.get("prompt"))
    if prompts.token_ids:
        return prompts.token_ids
    encoded = _encode_texts(tokenizer, prompts.texts)
    return [fill_empty(ids, tokenizer.bos_token_id) for ids in encoded]


def _encode_texts(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    # Without offsets, which nobody reads: a quarter of the time (tests/bench/gateway_tokenize.py).
    encoded = tokenizer.backend_tokenizer.encode_batch_fast(texts)
    return [_one_bos(item.ids, tokenizer.bos_token_id) for item in encoded]


def _encode_chat(
    tokenizer: Any,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None,
    variables: dict[str, Any],
) -> list[int]:
    # Rendering and encoding apart: the encoder is then never reconfigured, so that several
    # threads may share it. The ids are those of apply_chat_template(tokenize=True).
    text = tokenizer.apply_chat_template(
        messages, tools=tools, add_generation_prompt=True, tokenize=False, **variables
    )
    [encoded] = tokenizer.backend_tokenizer.encode_batch_fast([text], add_special_tokens=False)
    ids: list[int] = encoded.ids
    return ids


def _one_bos(ids: list[int], bos_token_id: int | None) -> list[int]:
    """A prompt that spells out the start token does not get a second one from the tokenizer."""
    doubled = bos_token_id is not None and ids[:2] == [bos_token_id, bos_token_id]
    return ids[1:] if doubled else ids


def _fingerprint(directory: Path) -> str:
    """Return the name of the directory's text files, empty where they cannot be told of."""
    try:
        return text_fingerprint(read_text_files(directory))
    except TextFilesError as fault:
        print(f"the tokenizer cannot be shared with gateways: {fault}", file=sys.stderr)  # noqa: T201
        return ""


def serve(directory: Path, source: BinaryIO, sink: BinaryIO, *, ids_only: bool = False) -> None:
    """Load, then answer until the input closes."""
    lock = threading.Lock()

    def send(reply: TextReply) -> None:
        with lock:
            sink.write(frame(reply))
            sink.flush()

    try:
        tokenizer = load_tokenizer(directory)
        send(describe(tokenizer, directory, ids_only=ids_only))
    except Exception as error:  # noqa: BLE001  process root: who started it must hear why
        send(TextRefused(number=-1, message=f"{type(error).__name__}: {error}"[:1000]))
        return

    reading = threading.Lock()

    def work() -> None:
        # Each thread reads its own next command: handing it over would cost another switch.
        while True:
            with reading:
                header = source.read(HEADER_BYTES)
                if len(header) < HEADER_BYTES:
                    return
                body = source.read(int.from_bytes(header, "big"))
            command = decode_text_command(body)
            try:
                send(answer(tokenizer, command))
            except BrokenPipeError:
                return
            except Exception as error:  # noqa: BLE001  thread root: each command gets its reply
                send(TextRefused(number=command.number, message=type(error).__name__))

    threads = [threading.Thread(target=work) for _ in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> None:
    """Run the process; whatever libraries print goes to standard error, not into a frame."""
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(Path(sys.argv[1]), sys.stdin.buffer, sink, ids_only="--ids-only" in sys.argv[2:])


if __name__ == "__main__":
    main()
