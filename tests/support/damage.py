"""Ways in which a stored block's file can go bad."""

import os
from collections.abc import Callable
from pathlib import Path


def cut(path: Path, at: int) -> None:
    os.truncate(path, at if at >= 0 else path.stat().st_size + at)


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def zero_tail(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-4096] + bytes(4096))


def replace(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: cut(path, 0),
    "cut at 7": lambda path: cut(path, 7),
    "cut at 8": lambda path: cut(path, 8),
    "cut in half": lambda path: cut(path, path.stat().st_size // 2),
    "cut by a byte": lambda path: cut(path, -1),
    "zeroed tail": zero_tail,
    "flipped payload": lambda path: flip(path, -5),
    "flipped header": lambda path: flip(path, 30),
    "html": lambda path: path.write_text("<html>not found</html>" * 300),
    "header of 2^63": lambda path: path.write_bytes((1 << 63).to_bytes(8, "little") + b"x" * 99),
    "directory": lambda path: replace(path, lambda p: (p.mkdir(), (p / "keep").write_text("x"))),
    "fifo": lambda path: replace(path, os.mkfifo),
    "link to itself": lambda path: replace(path, lambda p: p.symlink_to(p)),
    "link to a good block": lambda path: path.symlink_to(path.rename(path.parents[2] / "moved")),
    "link to a device": lambda path: replace(path, lambda p: p.symlink_to("/dev/zero")),
}
