"""A scripted engine process: it speaks the engine's wire, follows a script, needs no MLX.

Give the pool `scripted_launcher(Script(...))` as its `PoolSettings.launcher`:

    settings = PoolSettings(log_directory=tmp_path, launcher=scripted_launcher(Script()))

By default it is a "hash model": each next token depends on all tokens before it, so a row gives
the same tokens alone, in a batch, and when continued from prompt + output (`hash_tokens` tells
which). `Script.output` replaces that with fixed ids and a natural stop after them.

Triggers make one prompt do harm: `Script(triggers={7001: "signal:SIGKILL@2"})` acts when a
prompt that contains token 7001 has emitted 2 tokens (0 without `@`). Actions:
  exit:N         leave with exit code N          signal:NAME  send itself a signal (SIGSTOP too)
  raise          die of a Python exception       fail         this row ends with Failed
  hang           this row never ends             mute         go on, but send no heartbeat
  stall          the step loop stops; heartbeats show a step that does not end
  ask:N          report a measured chunk and ask for N bytes; go on, or end, as the Answer says

`gate` names a file: tokens flow only while it exists. `record` names a file that gets one JSON
line for every command received, such as {"type": "cancel", "request_id": "a"}. Limits and
Reclaim are recorded and otherwise ignored; Abort fails its row.
"""

import argparse
import asyncio
import hashlib
import json
import os
import signal
import socket
import sys
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from node_agent.engine.framing import FrameDecoder, frame
from node_agent.engine.messages import (
    Abort,
    Answer,
    Ask,
    Cancel,
    ChunkMeasured,
    Command,
    Event,
    Failed,
    Finished,
    Generate,
    Heartbeat,
    Hello,
    Load,
    Loaded,
    LoadFailed,
    Loading,
    PrefillProgress,
    Shutdown,
    TokenLogprobs,
    Tokens,
    decode_command,
    encode,
)
from node_agent.pool.process import Launcher

_SCRIPT_VARIABLE = "SCRIPTED_ENGINE_SCRIPT"


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine does. Units: seconds, tokens, bytes."""

    output: list[int] = []
    vocab_low: int = 0
    vocab_high: int = 1024
    stop_after_tokens: int | None = None
    step_seconds: float = 0.0
    chunk_tokens: int = 64
    chunk_seconds: float = 0.0
    load_seconds: float = 0.0
    load_failed: str = ""
    exit_on_load: int | None = None
    heartbeat_seconds: float = 0.05
    active_bytes: int = 1 << 20
    triggers: dict[int, str] = {}
    gate: str = ""
    record: str = ""


def scripted_launcher(script: Script) -> Launcher:
    """Return a launcher of scripted engines for PoolSettings."""
    return Launcher(
        command=(sys.executable, "-m", "tests.support.scripted_engine"),
        environment={_SCRIPT_VARIABLE: msgspec.json.encode(script).decode()},
    )


def next_token(context: list[int], script: Script) -> int:
    """Return what the hash model says after these tokens."""
    digest = hashlib.sha256(",".join(map(str, context)).encode()).digest()
    width = script.vocab_high - script.vocab_low
    return script.vocab_low + int.from_bytes(digest[:8], "big") % width


def hash_tokens(prompt: list[int], count: int, script: Script) -> list[int]:
    """Return the first `count` tokens that the hash model gives for a prompt."""
    context = list(prompt)
    for _ in range(count):
        context.append(next_token(context, script))
    return context[len(prompt) :]


@dataclass
class _Row:
    command: Generate
    output: list[int] = field(default_factory=list)
    fed_tokens: int = 0
    asked: bool = False
    held: bool = False

    @property
    def action(self) -> str:
        """The trigger that is due, or an empty text."""
        for token, spec in SCRIPT.triggers.items():
            action, _, after = spec.partition("@")
            if token in self.command.prompt and len(self.output) >= int(after or 0):
                return action
        return ""


class _Engine(asyncio.Protocol):
    def __init__(self) -> None:
        self.decoder = FrameDecoder()
        self.rows: dict[str, _Row] = {}
        self.waiting: deque[_Row] = deque()
        self.max_running = 32
        self.steps = 0
        self.stalled_at: float | None = None
        self.muted = False
        self.exit_code = 5
        self.loop = asyncio.get_running_loop()
        self.work = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.send(Hello(pid=os.getpid()))
        self.beat()

    def connection_lost(self, _exc: Exception | None) -> None:
        os._exit(self.exit_code)

    def send(self, *events: Event) -> None:
        self.transport.write(b"".join(frame(encode(event)) for event in events))

    def beat(self) -> None:
        stalled = 0.0 if self.stalled_at is None else self.loop.time() - self.stalled_at
        if not self.muted:
            self.send(
                Heartbeat(
                    steps=self.steps,
                    step_seconds=stalled,
                    running=len(self.rows),
                    waiting=len(self.waiting),
                    active_bytes=SCRIPT.active_bytes,
                    cache_bytes=0,
                    peak_bytes=SCRIPT.active_bytes,
                )
            )
        self.loop.call_later(SCRIPT.heartbeat_seconds, self.beat)

    def data_received(self, data: bytes) -> None:
        for body in self.decoder.feed(data):
            self.accept(decode_command(body))

    def accept(self, command: Command) -> None:
        _record(command)
        if isinstance(command, Load):
            self.max_running = command.max_running
            self.task = self.loop.create_task(self.live())
        elif isinstance(command, Generate):
            self.waiting.append(_Row(command))
        elif isinstance(command, Cancel):
            self.cancel(command.request_id)
        elif isinstance(command, Abort):
            self.abort(command)
        elif isinstance(command, Answer):
            self.answer(command)
        elif isinstance(command, Shutdown):
            rows = [*self.rows.values(), *self.waiting]
            self.send(*(_failed(row, "shutting_down", "the engine shuts down") for row in rows))
            self.loop.call_soon(os._exit, 0)
        self.work.set()

    def answer(self, command: Answer) -> None:
        row = self.rows.get(command.request_id)
        if row is not None and row.held:
            row.held = False
            if not command.granted:
                del self.rows[command.request_id]
                self.send(_failed(row, "prefill_memory_exceeded", command.message))

    def cancel(self, request_id: str) -> None:
        if (row := self.take(request_id)) is not None:
            self.send(_finished(row, "cancelled"))

    def abort(self, command: Abort) -> None:
        if self.take(command.request_id) is not None:
            end = Failed(
                request_id=command.request_id,
                code=command.code,
                message=command.message,
                retryable=command.retryable,
            )
            self.send(end)

    def take(self, request_id: str) -> _Row | None:
        row = self.rows.pop(request_id, None)
        if row is None:
            row = next((r for r in self.waiting if r.command.request_id == request_id), None)
            if row is not None:
                self.waiting.remove(row)
        return row

    async def live(self) -> None:
        try:
            await self.load()
            while True:
                self.work.clear()
                while self.rows or self.waiting:
                    await self.step()
                await self.work.wait()
        except Exception:  # noqa: BLE001 - root of the task
            sys.stderr.write("the scripted engine raised\n")
            os._exit(1)

    async def load(self) -> None:
        if SCRIPT.exit_on_load is not None:
            os._exit(SCRIPT.exit_on_load)
        self.send(Loading(done_bytes=40, total_bytes=100))
        await asyncio.sleep(SCRIPT.load_seconds)
        if SCRIPT.load_failed:
            self.send(LoadFailed(message=SCRIPT.load_failed))
            self.exit_code = 3
            self.transport.write_eof()
            await asyncio.sleep(60)
        self.send(
            Loading(done_bytes=100, total_bytes=100),
            Loaded(
                device="scripted",
                mlx_version="0",
                chunk_tokens=SCRIPT.chunk_tokens,
                active_bytes=SCRIPT.active_bytes,
            ),
        )

    async def step(self) -> None:
        while self.waiting and len(self.rows) < self.max_running:
            row = self.waiting.popleft()
            self.rows[row.command.request_id] = row
        while SCRIPT.gate and not os.path.exists(SCRIPT.gate):  # noqa: ASYNC110, ASYNC240, PTH110
            await asyncio.sleep(0.005)
        await asyncio.sleep(SCRIPT.step_seconds)
        self.steps += 1
        for row in list(self.rows.values()):
            await self.advance(row)

    async def advance(self, row: _Row) -> None:
        total = len(row.command.prompt)
        if row.fed_tokens < total:
            await asyncio.sleep(SCRIPT.chunk_seconds)
            chunk = min(SCRIPT.chunk_tokens, total - row.fed_tokens)
            row.fed_tokens += chunk
            seconds = SCRIPT.chunk_seconds or 0.001
            if row.command.request_id in self.rows:
                self.send(
                    PrefillProgress(
                        request_id=row.command.request_id,
                        done_tokens=row.fed_tokens,
                        total_tokens=total,
                        chunk_tokens=chunk,
                        seconds=seconds,
                    )
                )
            return
        if row.command.request_id not in self.rows or await self.act(row):
            return
        self.emit(row)

    def emit(self, row: _Row) -> None:
        command, made = row.command, len(row.output)
        scripted_end = SCRIPT.output and made >= len(SCRIPT.output)
        if scripted_end or made == SCRIPT.stop_after_tokens:
            self.end(row, "stop")
            return
        context = command.prompt + row.output
        token = SCRIPT.output[made] if SCRIPT.output else next_token(context, SCRIPT)
        if token in command.stop_token_ids and not command.ignore_eos:
            self.end(row, "stop")
            return
        row.output.append(token)
        logprobs: list[TokenLogprobs] = []
        if (count := command.sampling.top_logprobs) is not None:
            top = [(token + rank, -0.5 - rank) for rank in range(count)]
            logprobs = [TokenLogprobs(logprob=-0.5, top=top)]
        self.send(Tokens(request_id=command.request_id, ids=[token], logprobs=logprobs))
        if len(row.output) >= command.max_tokens:
            self.end(row, "length")

    def end(self, row: _Row, reason: str) -> None:
        del self.rows[row.command.request_id]
        self.send(_finished(row, reason))

    async def act(self, row: _Row) -> bool:
        """Carry out a due trigger; return whether the row makes no token now."""
        action, _, detail = row.action.partition(":")
        if action == "exit":
            os._exit(int(detail))
        if action == "signal":
            os.kill(os.getpid(), getattr(signal, detail))
        if action == "raise":
            raise RuntimeError("as scripted")
        if action == "fail":
            del self.rows[row.command.request_id]
            self.send(_failed(row, "internal_error", "as scripted"))
        if action == "ask" and not row.asked:
            row.asked = row.held = True
            self.send(
                _measured(row), Ask(request_id=row.command.request_id, more_bytes=int(detail))
            )
        if action == "mute":
            self.muted = True
        if action == "stall":
            self.stalled_at = self.loop.time()
            await asyncio.Event().wait()
        return action in {"fail", "hang"} or row.held


def _measured(row: _Row) -> ChunkMeasured:
    return ChunkMeasured(
        request_id=row.command.request_id,
        chunk_tokens=len(row.command.prompt),
        context_tokens=len(row.command.prompt),
        predicted_bytes=1000,
        actual_bytes=1200,
    )


def _finished(row: _Row, reason: str) -> Finished:
    return Finished(
        request_id=row.command.request_id,
        reason=reason,
        prompt_tokens=len(row.command.prompt),
        completion_tokens=len(row.output),
    )


def _failed(row: _Row, code: str, message: str) -> Failed:
    return Failed(request_id=row.command.request_id, code=code, message=message)


def _record(command: Command) -> None:
    if SCRIPT.record:
        with Path(SCRIPT.record).open("a") as lines:
            lines.write(json.dumps(msgspec.to_builtins(command)) + "\n")


SCRIPT = msgspec.json.decode(os.environ.get(_SCRIPT_VARIABLE, "{}"), type=Script, strict=False)


async def _main(fd: int) -> None:
    loop = asyncio.get_running_loop()
    await loop.create_unix_connection(_Engine, sock=socket.socket(fileno=fd))
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    asyncio.run(_main(parser.parse_args().fd))
