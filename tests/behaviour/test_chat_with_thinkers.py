"""`mlxctl chat` with a model that thinks: what is piped is the answer alone."""

import asyncio
import json
import os
import pty
import sys
from typing import Any

import pytest

from tests.support.asgi_server import serve_asgi


def thinker(*deltas: dict[str, str]) -> Any:
    """Return an endpoint that streams these deltas to everyone."""
    events = [json.dumps({"choices": [{"index": 0, "delta": delta}]}) for delta in deltas]
    body = "".join(f"data: {item}\n\n" for item in (*events, "[DONE]")).encode()

    async def app(_scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app


async def chat(port: int, **streams: Any) -> tuple[str, str]:
    """Ask one question; what is said on both streams, as far as they are not given."""
    command = [sys.executable, "-m", "controller.cli", "--server", f"http://127.0.0.1:{port}"]
    process = await asyncio.create_subprocess_exec(
        *(*command, "chat", "m", "hello"),
        stdin=asyncio.subprocess.DEVNULL,
        **{"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE, **streams},
    )
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    assert process.returncode == 0, err
    return out.decode(), (err or b"").decode()


THOUGHTS = {"reasoning_content": "let me see"}


@pytest.mark.processes
async def test_thinking_is_no_part_of_what_is_piped() -> None:
    async with serve_asgi(thinker(THOUGHTS, {"content": "four"})) as port:
        assert await chat(port) == ("four\n", "")


@pytest.mark.processes
async def test_an_answer_that_is_all_thinking_says_so() -> None:
    async with serve_asgi(thinker(THOUGHTS)) as port:
        out, err = await chat(port)
    assert out == "\n"
    assert "still thinking" in err
    assert "--max-tokens" in err


@pytest.mark.processes
async def test_people_see_the_thinking() -> None:
    ours, theirs = pty.openpty()
    try:
        async with serve_asgi(thinker(THOUGHTS, {"content": "four"})) as port:
            out, _ = await chat(port, stderr=theirs)
        seen = os.read(ours, 4096).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert out == "four\n"
    assert "let me see" in seen
