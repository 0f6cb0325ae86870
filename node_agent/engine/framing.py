"""How messages become bytes on the socket between agent and engine.

Owns the frame: four bytes of length, big-endian, then that many bytes of msgpack. It does no
I/O; both ends of the socket feed it bytes as they come.
"""

import struct
from collections.abc import Iterator

# A prompt of a million tokens packs into about 5 MB; anything near this size is a fault.
MAX_FRAME_BYTES = 64 << 20

_LENGTH = struct.Struct(">I")


class FrameError(Exception):
    """The peer sent, or was about to be sent, a frame that breaks the protocol."""


def frame(body: bytes, max_frame_bytes: int = MAX_FRAME_BYTES) -> bytes:
    """Return the body with its length in front. Raises FrameError when it is too large."""
    if len(body) > max_frame_bytes:
        raise FrameError(f"a message of {len(body)} bytes exceeds the {max_frame_bytes} allowed")
    return _LENGTH.pack(len(body)) + body


class FrameDecoder:
    """Cuts a stream of bytes into frames, however the bytes were split on the way."""

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._buffer = bytearray()

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield every frame that is now complete.

        Mutates: the kept remainder. Raises: FrameError as soon as a length is too large.
        """
        self._buffer += chunk
        start = 0
        try:
            while len(self._buffer) - start >= _LENGTH.size:
                (size,) = _LENGTH.unpack_from(self._buffer, start)
                if size > self._max_frame_bytes:
                    raise FrameError(
                        f"a frame of {size} bytes exceeds the {self._max_frame_bytes} allowed"
                    )
                end = start + _LENGTH.size + size
                if len(self._buffer) < end:
                    break
                body = bytes(self._buffer[start + _LENGTH.size : end])
                start = end
                yield body
        finally:
            del self._buffer[:start]

    @property
    def pending_bytes(self) -> int:
        """How many bytes of an unfinished frame are held."""
        return len(self._buffer)
