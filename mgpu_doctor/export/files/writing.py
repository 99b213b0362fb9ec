"""Writes what comes in pieces: private, whole or absent, packed where the name ends in `.gz`."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

MANY = 1 << 20
"""Characters that are written at once."""


def write(path: Path, pieces: Iterable[str]) -> int:
    """Bytes written. Raises `OSError` and leaves no debris."""
    with draft(path) as file:
        if path.suffix == ".gz":
            with gzip.GzipFile(path.stem, "wb", 6, file, mtime=0) as packed:
                for block in _blocks(pieces):
                    packed.write(block)
        else:
            file.writelines(_blocks(pieces))
        return file.tell()


@contextmanager
def draft(path: Path) -> Iterator[BinaryIO]:
    """A private file that becomes `path` when all went well, and is gone when not."""
    made = path.with_name(f".{path.name}.{os.getpid()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(made, flags, 0o600)
    try:
        with open(descriptor, "wb") as file:
            yield file
        made.replace(path)
    except BaseException:
        made.unlink(missing_ok=True)
        raise


def _blocks(pieces: Iterable[str]) -> Iterable[bytes]:
    held: list[str] = []
    length = 0
    for piece in pieces:
        held.append(piece)
        length += len(piece)
        if length >= MANY:
            yield "".join(held).encode("utf-8", "replace")
            held, length = [], 0
    yield "".join(held).encode("utf-8", "replace")
