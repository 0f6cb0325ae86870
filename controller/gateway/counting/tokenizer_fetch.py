"""Fetches a model's text files from the nodes that have them. Called by `tokenizers`."""

import asyncio
from collections.abc import Sequence

import aiohttp
import structlog

from manifests.prompt.bundle import MAX_BUNDLE_BYTES, TOKENIZERS_PATH

_LOG = structlog.get_logger(__name__)
_SECONDS = 120.0
_SILENCE_SECONDS = 10.0
_PIECE_BYTES = 256 * 1024


class FetchError(Exception):
    """No node gave the files; the message says why, without addresses."""


async def fetch_bundle(session: aiohttp.ClientSession, address: str, fingerprint: str) -> bytearray:
    """Return what one node sends for a fingerprint, unchecked. Raises FetchError."""
    url = address + TOKENIZERS_PATH.format(fingerprint=fingerprint)
    timeout = aiohttp.ClientTimeout(
        total=_SECONDS, sock_connect=_SILENCE_SECONDS, sock_read=_SILENCE_SECONDS
    )
    bundle = bytearray()
    try:
        async with session.get(url, timeout=timeout, allow_redirects=False) as response:
            if response.status != 200:
                raise FetchError(f"status {response.status}")
            async for piece in response.content.iter_chunked(_PIECE_BYTES):
                bundle += piece
                if len(bundle) > MAX_BUNDLE_BYTES:
                    raise FetchError(f"more than {MAX_BUNDLE_BYTES} bytes")
    except (aiohttp.ClientError, TimeoutError, OSError, asyncio.IncompleteReadError) as fault:
        raise FetchError(type(fault).__name__) from fault
    return bundle


def order_sources(addresses: Sequence[str], failures: int) -> tuple[str, ...]:
    """Return the nodes in the order to ask them: another one first after every failure."""
    if not addresses:
        return ()
    first = failures % len(addresses)
    return (*addresses[first:], *addresses[:first])
