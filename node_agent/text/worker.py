"""The tokenizer process: `python -m node_agent.text.worker DIRECTORY`.

Owns one model's tokenizer and chat template. It is the only place that imports transformers,
because loading a tokenizer of 262k entries holds the interpreter for one to three seconds,
which the agent's health check cannot wait for (docs/adr/0006-tokenizer-process.md). Reads
commands from standard input, answers on standard output, ends when its input closes. It never
opens a network connection and never runs code from a model directory.
"""

import json
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

from transformers import AutoTokenizer

from node_agent.text.defaults import read_defaults
from node_agent.text.messages import (
    HEADER_BYTES,
    Encoded,
    EncodeTexts,
    TextCommand,
    TextRefused,
    TextReply,
    TokenizerReady,
    decode_text_command,
    frame,
)
from node_agent.text.pieces import build_pieces, plan_pieces

_MESSAGE_CHARACTERS = 300


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


def describe(tokenizer: Any, directory: Path) -> TokenizerReady:
    """Return what the agent needs to turn ids into text by itself."""
    backend = tokenizer.backend_tokenizer
    decoder = json.loads(backend.decoder.__getstate__()) if backend.decoder else None
    plan = plan_pieces(decoder)
    added = backend.get_added_tokens_decoder()
    special = sorted(number for number, token in added.items() if token.special)
    size = max([backend.get_vocab_size(with_added_tokens=True), *(n + 1 for n in added)])
    tokens = [backend.id_to_token(number) for number in range(size)]
    return TokenizerReady(
        plan=plan,
        pieces=build_pieces(plan, tokens, frozenset(special)),
        decoder=json.dumps(decoder),
        special_ids=special,
        bos_token_id=tokenizer.bos_token_id,
        has_chat_template=bool(tokenizer.chat_template),
        defaults=read_defaults(directory, tokenizer.eos_token_id),
    )


def answer(tokenizer: Any, command: TextCommand) -> TextReply:
    """Return the reply to one command."""
    backend = tokenizer.backend_tokenizer
    if isinstance(command, EncodeTexts):
        bos = tokenizer.bos_token_id
        texts = [_one_bos(backend.encode(text).ids, bos) for text in command.texts]
        return Encoded(number=command.number, ids=texts)
    try:
        # Rendering and encoding apart: the encoder is then never reconfigured, so that several
        # threads may share it. The ids are those of apply_chat_template(tokenize=True).
        text = tokenizer.apply_chat_template(
            command.messages,
            tools=command.tools,
            add_generation_prompt=True,
            tokenize=False,
            **command.variables,
        )
    except Exception as error:  # noqa: BLE001  templates are foreign code; any fault is an answer
        reason = str(error).strip()[:_MESSAGE_CHARACTERS] or type(error).__name__
        return TextRefused(number=command.number, message=reason)
    return Encoded(number=command.number, ids=[backend.encode(text, add_special_tokens=False).ids])


def _one_bos(ids: list[int], bos_token_id: int | None) -> list[int]:
    """A prompt that spells out the start token does not get a second one from the tokenizer."""
    doubled = bos_token_id is not None and ids[:2] == [bos_token_id, bos_token_id]
    return ids[1:] if doubled else ids


def serve(directory: Path, source: BinaryIO, sink: BinaryIO) -> None:
    """Load, then answer until the input closes."""
    lock = threading.Lock()

    def send(reply: TextReply) -> None:
        with lock:
            sink.write(frame(reply))
            sink.flush()

    try:
        tokenizer = load_tokenizer(directory)
        send(describe(tokenizer, directory))
    except Exception as error:  # noqa: BLE001  process root: the agent must hear why
        send(TextRefused(number=-1, message=f"{type(error).__name__}: {error}"[:1000]))
        return

    def work(command: TextCommand) -> None:
        try:
            send(answer(tokenizer, command))
        except Exception as error:  # noqa: BLE001  thread root: each command gets its reply
            send(TextRefused(number=command.number, message=type(error).__name__))

    with ThreadPoolExecutor(2) as threads:
        while len(header := source.read(HEADER_BYTES)) == HEADER_BYTES:
            body = source.read(int.from_bytes(header, "big"))
            threads.submit(work, decode_text_command(body))


def main() -> None:
    """Run the process; whatever libraries print goes to standard error, not into a frame."""
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(Path(sys.argv[1]), sys.stdin.buffer, sink)


if __name__ == "__main__":
    main()
