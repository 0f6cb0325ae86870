"""Reads and writes one file of the cache directory, trusting nothing it finds there.

Owns the system calls: no symlink is followed, nothing that is not a regular file is read, nothing
hangs on a FIFO, modes do not depend on the umask. Called by the store. Paths are names inside an
open directory, so a directory that is swapped under us is noticed and not written into.

Files are read, not mapped: a mapped file whose volume is unplugged, or which is cut by someone
else, kills the process with SIGBUS at the next access; a read reports an error.
"""

import errno
import fcntl
import os
import stat
import sys
from collections.abc import Callable, Sequence

from manifests.sizing.safetensors_header import LENGTH_BYTES
from node_agent.kvcache.block import BlockHeader
from node_agent.kvcache.block_format import BlockDamagedError, decode_header, header_bytes

FILE_MODE = 0o600
MAX_FILE_BYTES = 4 << 30
# One system call moves so much at most, so that a slow disk is told from one that hangs.
PIECE_BYTES = 8 << 20

# O_NONBLOCK: opening a FIFO nobody writes to would wait for ever.
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NOT_A_FILE = frozenset({errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.EOPNOTSUPP})
_NO_FULL_SYNC = frozenset({errno.ENOTSUP, errno.EINVAL, errno.ENOTTY, errno.EOPNOTSUPP})


def _unseen() -> None:
    """Note nothing."""


def read_file(directory: int, name: str, progress: Callable[[], None] = _unseen) -> bytearray:
    """Return a file's content; `progress` is told of each piece.

    Raises: BlockDamagedError when it is not a regular file or changed its size; OSError otherwise,
    FileNotFoundError when there is none.
    """
    descriptor, size_bytes = _open_regular(directory, name)
    try:
        content = bytearray(size_bytes)
        _read_into(descriptor, memoryview(content), progress)
    finally:
        os.close(descriptor)
    return content


def read_block_header(directory: int, name: str) -> tuple[BlockHeader, int]:
    """Return what a block file says it is, and its size; the payload is not read.

    Raises: BlockDamagedError, OSError.
    """
    descriptor, size_bytes = _open_regular(directory, name)
    try:
        prefix = bytearray(min(LENGTH_BYTES, size_bytes))
        _read_into(descriptor, memoryview(prefix))
        raw = bytearray(header_bytes(prefix, size_bytes))
        _read_into(descriptor, memoryview(raw))
    finally:
        os.close(descriptor)
    return decode_header(bytes(raw), size_bytes - LENGTH_BYTES - len(raw)), size_bytes


def write_new(
    directory: int,
    name: str,
    parts: Sequence[bytes | memoryview],
    durable: bool,
    progress: Callable[[], None] = _unseen,
) -> None:
    """Write a file that does not exist yet, readable by us alone; `progress` as in `read_file`.

    Raises: OSError; the file may then be there in part, and the caller removes it.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(name, flags, FILE_MODE, dir_fd=directory)
    try:
        make_private(descriptor, FILE_MODE)
        for part in parts:
            rest = memoryview(part)
            while rest:
                rest = rest[os.write(descriptor, rest[:PIECE_BYTES]) :]
                progress()
        if durable:
            flush_to_drive(descriptor)
    finally:
        os.close(descriptor)


def make_private(descriptor: int, mode: int) -> bool:
    """Set a mode whatever the umask; False on a volume that keeps no modes."""
    try:
        os.fchmod(descriptor, mode)
    except OSError as error:
        if error.errno in {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP}:
            return False
        raise
    return stat.S_IMODE(os.fstat(descriptor).st_mode) == mode


def flush_to_drive(descriptor: int) -> None:
    """Return when the drive has the bytes; on macOS fsync alone stops at the drive's cache."""
    if sys.platform == "darwin":
        try:
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
        except OSError as error:
            if error.errno not in _NO_FULL_SYNC:
                raise
        else:
            return
    os.fsync(descriptor)


def _open_regular(directory: int, name: str) -> tuple[int, int]:
    try:
        descriptor = os.open(name, _READ_FLAGS, dir_fd=directory)
    except OSError as error:
        if error.errno in _NOT_A_FILE:
            raise BlockDamagedError(f"{name} is not a regular file") from error
        raise
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_size <= MAX_FILE_BYTES:
        return descriptor, status.st_size
    os.close(descriptor)
    if stat.S_ISREG(status.st_mode):
        raise BlockDamagedError(f"{name} has {status.st_size} bytes; no block is that large")
    raise BlockDamagedError(f"{name} is not a regular file")


def _read_into(descriptor: int, view: memoryview, progress: Callable[[], None] = _unseen) -> None:
    while view:
        count = os.readv(descriptor, [view[:PIECE_BYTES]])
        progress()
        if count == 0:
            raise BlockDamagedError("the file became shorter while it was read")
        view = view[count:]
