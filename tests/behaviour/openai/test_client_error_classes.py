"""The official clients turn our refusals into their own error classes, streaming and not."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import openai
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from manifests.errors import Code, Refusal, Retryable
from manifests.wire.error_body import (
    anthropic_error,
    anthropic_headers,
    anthropic_status,
    openai_error,
    openai_headers,
)
from tests.support.asgi_server import serve_asgi

HI: list[Any] = [{"role": "user", "content": "hi"}]
NEVER = Refusal(
    Code.PREFILL_MEMORY_EXCEEDED,
    "The request needs 9.00 GiB of memory, but this node can give at most 4.00 GiB to it.",
    Retryable.NO,
    hint="Shorten the prompt.",
    param="messages",
    estimated_bytes=9 << 30,
    limit_bytes=4 << 30,
    binding="static",
    fitting_tokens=4000,
)
LATER = Refusal(
    Code.PREFILL_MEMORY_EXCEEDED,
    "The request needs 9.00 GiB of memory, but 4.00 GiB is free.",
    Retryable.LATER,
    binding="static",
    retry_after_seconds=2,
)
TOO_LONG = Refusal(
    Code.CONTEXT_LENGTH_EXCEEDED, "The context is 4096 tokens.", Retryable.NO, param="messages"
)
UNKNOWN = Refusal(Code.MODEL_NOT_FOUND, "There is no such model.", Retryable.NO, param="model")
FULL = Refusal(Code.QUEUE_FULL, "The queue is full.", Retryable.LATER)
DIED = Refusal(Code.ENGINE_DIED, "The engine ended.", Retryable.ELSEWHERE)
BROKE = Refusal(Code.INTERNAL, "The agent failed.", Retryable.ELSEWHERE)


@asynccontextmanager
async def refusing(refusal: Refusal, *, inside: bool = False) -> AsyncIterator[str]:
    """Serve one refusal on both kinds of routes: as a status, or inside a stream that began."""

    async def openai_route(_: Request) -> Response:
        body = openai_error(refusal)
        if inside:
            return _stream(f"data: {json.dumps(body)}\n\n")
        return JSONResponse(body, refusal.http_status, openai_headers(refusal))

    async def anthropic_route(_: Request) -> Response:
        body = anthropic_error(refusal, "req-7")
        if inside:
            return _stream(f"event: error\ndata: {json.dumps(body)}\n\n")
        status = anthropic_status(refusal)
        return JSONResponse(body, status, anthropic_headers(refusal, "req-7"))

    routes = [
        Route("/v1/chat/completions", openai_route, methods=["POST"]),
        Route("/v1/completions", openai_route, methods=["POST"]),
        Route("/v1/messages", anthropic_route, methods=["POST"]),
    ]
    async with serve_asgi(Starlette(routes=routes)) as port:
        yield f"http://127.0.0.1:{port}"


def _stream(text: str) -> Response:
    return Response(text, media_type="text/event-stream")


async def ask_openai(url: str, *, stream: bool) -> None:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client:
        answer = await client.chat.completions.create(model="m", messages=HI, stream=stream)
        if isinstance(answer, openai.AsyncStream):
            async for _ in answer:
                pass


async def ask_anthropic(url: str, *, stream: bool) -> None:
    async with anthropic.AsyncAnthropic(base_url=url, api_key="k", max_retries=0) as client:
        answer = await client.messages.create(model="m", max_tokens=8, messages=HI, stream=stream)
        if isinstance(answer, anthropic.AsyncStream):
            async for _ in answer:
                pass


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("refusal", "raised", "status"),
    [
        (NEVER, openai.APIStatusError, 413),
        (LATER, openai.InternalServerError, 503),
        (TOO_LONG, openai.BadRequestError, 400),
        (UNKNOWN, openai.NotFoundError, 404),
        (FULL, openai.InternalServerError, 503),
        (DIED, openai.InternalServerError, 503),
        (BROKE, openai.InternalServerError, 500),
    ],
)
async def test_the_openai_client_raises_its_class_with_code_param_and_type(
    refusal: Refusal, raised: type[openai.APIStatusError], status: int, stream: bool
) -> None:
    async with refusing(refusal) as url:
        with pytest.raises(raised) as caught:
            await ask_openai(url, stream=stream)
    error = caught.value
    assert type(error) is raised
    assert (error.status_code, error.code, error.param) == (
        status,
        refusal.code.value,
        refusal.param,
    )
    assert error.type == (
        "server_error" if status >= 500 else openai_error(refusal)["error"]["type"]
    )
    assert isinstance(error.body, dict)
    assert refusal.message in error.message
    for name in ("estimated_bytes", "limit_bytes", "binding", "fitting_tokens"):
        assert error.body.get(name) == getattr(refusal, name)
    waits = error.response.headers.get("retry-after")
    assert waits == (None if status != 503 else str(refusal.retry_after_seconds or 1))


@pytest.mark.parametrize("refusal", [NEVER, LATER, BROKE])
async def test_the_openai_client_raises_inside_a_stream_with_the_same_fields(
    refusal: Refusal,
) -> None:
    async with refusing(refusal, inside=True) as url:
        with pytest.raises(openai.APIError) as caught:
            await ask_openai(url, stream=True)
    error = caught.value
    assert (error.code, error.param) == (refusal.code.value, refusal.param)
    assert isinstance(error.body, dict)
    assert error.body["retryable"] == refusal.retryable.value


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("refusal", "raised", "kind"),
    [
        (NEVER, anthropic.BadRequestError, "invalid_request_error"),
        (LATER, anthropic.APIStatusError, "overloaded_error"),
        (TOO_LONG, anthropic.BadRequestError, "invalid_request_error"),
        (UNKNOWN, anthropic.NotFoundError, "not_found_error"),
        (FULL, anthropic.APIStatusError, "overloaded_error"),
        (DIED, anthropic.InternalServerError, "api_error"),
        (BROKE, anthropic.InternalServerError, "api_error"),
    ],
)
async def test_the_anthropic_client_raises_its_class_with_type_and_our_code(
    refusal: Refusal, raised: type[anthropic.APIStatusError], kind: str, stream: bool
) -> None:
    async with refusing(refusal) as url:
        with pytest.raises(raised) as caught:
            await ask_anthropic(url, stream=stream)
    error = caught.value
    assert (error.type, error.request_id) == (kind, "req-7")
    assert isinstance(error.body, dict)
    assert error.body["request_id"] == "req-7"
    assert error.body["error"]["details"]["error_code"] == refusal.code.value
    assert refusal.message in error.body["error"]["message"]
    if kind == "overloaded_error":
        assert error.status_code == 529
        assert "Overloaded" in type(error).__name__
        assert error.response.headers["retry-after"] == str(refusal.retry_after_seconds or 1)


async def test_the_anthropic_client_never_takes_a_refused_prompt_for_a_large_body() -> None:
    """Its class for 413 means a body over 32 MB, which shortening the prompt's text would fix."""
    async with refusing(NEVER) as url:
        with pytest.raises(anthropic.APIStatusError) as caught:
            await ask_anthropic(url, stream=False)
    assert caught.value.status_code == 400
    assert not isinstance(caught.value, anthropic.RequestTooLargeError)


@pytest.mark.parametrize("refusal", [NEVER, LATER, BROKE])
async def test_the_anthropic_client_raises_inside_a_stream_with_the_same_fields(
    refusal: Refusal,
) -> None:
    async with refusing(refusal, inside=True) as url:
        with pytest.raises(anthropic.APIStatusError) as caught:
            await ask_anthropic(url, stream=True)
    body = caught.value.body
    assert isinstance(body, dict)
    assert body["error"]["type"] == anthropic_error(refusal)["error"]["type"]
    assert body["error"]["details"]["error_code"] == refusal.code.value
