"""`mlxctl chat`: talk to a model through the fleet's endpoint."""

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from controller.cli.client import ApiClient
from controller.cli.context import client_of
from controller.cli.exits import CliError, Exit
from controller.cli.output import note, say, think
from manifests.wire.error_body import parse_openai_error

CHAT_PATH = "/v1/chat/completions"

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Piece:
    """Some text of an answer, or of what the model thinks before it."""

    text: str
    thought: bool = False


@dataclass(slots=True)
class Answer:
    """What one streamed answer was. Units: seconds."""

    text: str = ""
    has_thought: bool = False
    finish_reason: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    first_token_seconds: float | None = None
    total_seconds: float = 0.0
    node: str = ""
    started: float = field(default_factory=time.monotonic)

    def summary(self) -> str:
        """Return the figures in one line."""
        decoding = self.total_seconds - (self.first_token_seconds or 0.0)
        rate = (self.completion_tokens - 1) / decoding if decoding > 0 else 0.0
        first = f"{self.first_token_seconds:.2f} s to the first" if self.first_token_seconds else ""
        parts = [
            f"{self.prompt_tokens} + {self.completion_tokens} tokens",
            first,
            f"{rate:.1f} tok/s" if rate > 0 else "",
            f"node {self.node}" if self.node else "",
            "cut at the token limit" if self.finish_reason == "length" else "",
        ]
        return " · ".join(part for part in parts if part)


def chat(
    ctx: typer.Context,
    model: Annotated[str, typer.Argument(help="a name from `mlxctl get models`")],
    prompt: Annotated[
        str | None, typer.Argument(help="one question; without it, a conversation (or stdin)")
    ] = None,
    system: Annotated[str | None, typer.Option("--system", help="system message")] = None,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", min=1)] = None,
    temperature: Annotated[float | None, typer.Option("--temperature", min=0, max=2)] = None,
) -> None:
    """Talk to a model through the fleet's endpoint."""
    client = client_of(ctx)
    options = {"max_tokens": max_tokens, "temperature": temperature}
    body = {"model": model, **{key: value for key, value in options.items() if value is not None}}
    history: list[Message] = [{"role": "system", "content": system}] if system else []
    if prompt is None and not sys.stdin.isatty():
        prompt = sys.stdin.read().strip()
        if not prompt:
            raise CliError("no prompt: give one as argument or on stdin", code=Exit.USAGE)
    if prompt is not None:
        _turn(client, body, history, prompt)
        return
    note(f"talking to {model} at {client.server}; Ctrl-D ends")
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            say()
            return
        if line:
            _turn(client, body, history, line)


def _turn(client: ApiClient, body: dict[str, Any], history: list[Message], prompt: str) -> None:
    """Send one user message, print the answer as it comes, and keep both in the history.

    Thinking is for people at a terminal and no part of the data.
    """
    history.append({"role": "user", "content": prompt})
    answer = Answer()
    thinking = False
    for piece in stream_answer(client, {**body, "messages": history}, answer):
        if thinking and not piece.thought:
            think("\n")
        thinking = piece.thought
        if thinking:
            think(piece.text)
        else:
            sys.stdout.write(piece.text)
            sys.stdout.flush()
    say()
    if answer.has_thought and not answer.text:
        note("no answer: the model was still thinking. A larger --max-tokens gives it more room.")
    history.append({"role": "assistant", "content": answer.text})
    if sys.stderr.isatty():
        note(answer.summary())


def stream_answer(client: ApiClient, body: dict[str, Any], answer: Answer) -> Iterator[Piece]:
    """Yield the pieces of a streamed answer and fill `answer`.

    Raises: CliError when the fleet refuses, and when the stream ends before its end mark.
    """
    sent = {**body, "stream": True, "stream_options": {"include_usage": True}}
    ended = False
    with client.stream("POST", CHAT_PATH, body=sent) as reply:
        if reply.status_code >= 400:
            reply.read()
            raise _refused(reply.status_code, reply.text)
        answer.node = reply.headers.get("x-mlxfleet-node", "")
        for line in reply.iter_lines():
            if not line.startswith("data:"):
                continue
            data = line[5:].strip()
            if data == "[DONE]":
                ended = True
                break
            chunk = json.loads(data)
            if "error" in chunk:
                raise _refused(503, data)
            yield from _pieces(chunk, answer)
    answer.total_seconds = time.monotonic() - answer.started
    if not ended:
        raise CliError("the answer was cut off: the stream ended early", code=Exit.UNREACHABLE)


def _pieces(chunk: dict[str, Any], answer: Answer) -> Iterator[Piece]:
    usage = chunk.get("usage") or {}
    answer.prompt_tokens = usage.get("prompt_tokens", answer.prompt_tokens)
    answer.completion_tokens = usage.get("completion_tokens", answer.completion_tokens)
    for choice in chunk.get("choices") or []:
        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
        delta = choice.get("delta") or {}
        thought, text = delta.get("reasoning_content") or "", delta.get("content") or ""
        if (thought or text) and answer.first_token_seconds is None:
            answer.first_token_seconds = time.monotonic() - answer.started
        if thought:
            answer.has_thought = True
            yield Piece(thought, thought=True)
        if text:
            answer.text += text
            yield Piece(text)


def _refused(status: int, text: str) -> CliError:
    try:
        body = json.loads(text)
    except ValueError:
        body = None
    refusal = parse_openai_error(status, body)
    code = Exit.NOT_FOUND if status == 404 else Exit.REFUSED
    return CliError(refusal.message, code=code)
