"""The agent's answer to gateways that want a model's tokenizer, to count as this node counts."""

import asyncio
from pathlib import Path

import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from manifests.errors import Code, Refusal, RequestError
from manifests.prompt.bundle import TOKENIZERS_PATH, pack_bundle
from manifests.prompt.files import (
    TextFilesError,
    is_fingerprint,
    read_text_files,
    text_fingerprint,
)
from node_agent.text.models import TextModels

_LOG = structlog.get_logger(__name__)
# A bundle is tens of MB in memory while it is sent.
_AT_ONCE = 2


class TokenizerRoutes:
    """One handler; the files it may read are those of tokenizers that are loaded here."""

    def __init__(self, texts: TextModels) -> None:
        self._texts = texts
        self._turn = asyncio.Semaphore(_AT_ONCE)

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [Route(TOKENIZERS_PATH, self._send, methods=["GET"])]

    async def _send(self, request: Request) -> Response:
        fingerprint = request.path_params["fingerprint"]
        if not is_fingerprint(fingerprint):
            message = "The fingerprint must be 64 hexadecimal digits, as the load report has it."
            raise RequestError(Refusal(Code.INVALID_VALUE, message, param="fingerprint"))
        directory = self._texts.find_directory(fingerprint)
        if directory is None:
            raise RequestError(_missing("No tokenizer of that fingerprint is loaded here."))
        async with self._turn:
            body = await asyncio.to_thread(_read, directory, fingerprint)
        if body is None:
            raise RequestError(_missing("The tokenizer's files have changed since it was loaded."))
        return Response(body, media_type="application/x-msgpack")


def _read(directory: Path, fingerprint: str) -> bytes | None:
    """Return the bundle, None when the files are no longer those of that name."""
    try:
        files = read_text_files(directory)
    except TextFilesError as fault:
        _LOG.warning("tokenizer_not_sent", reason=str(fault))
        return None
    return pack_bundle(files) if text_fingerprint(files) == fingerprint else None


def _missing(message: str) -> Refusal:
    return Refusal(Code.NOT_FOUND, message, hint="Ask for a textFingerprint of GET /fleet/v1/load.")
