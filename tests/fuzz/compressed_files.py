"""Compressed files: damaged, cut, of the wrong kind, or far larger than they look."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile
import zlib
from collections.abc import Callable
from random import Random

from tests.fuzz.byte_damage import damaged
from tests.fuzz.mutation_context import Scene

BOMB = 256 << 20
"""Bytes that a bomb of gzip unpacks to; it takes 260 kB on disk."""
MOST_SLOWLY = 8 << 20
"""Bytes that bzip2, or xz, packs within seconds, also where they repeat themselves."""
_LINES = (
    b"\x00",
    b"[",
    b'{"a":[',
    b"x\n",
    b"RuntimeError: CUDA out of memory. Tried\n",
    b"{},",
    b"\n",
)


def packed(raw: bytes, rng: Random) -> bytes:
    """`raw` compressed in some way, whole or damaged."""
    kind = rng.randrange(6)
    if kind in {1, 2} and len(raw) > MOST_SLOWLY:
        kind = 5
    if kind == 0:
        whole = gzip.compress(raw, 1) + gzip.compress(raw[:100], 1)
    elif kind == 1:
        whole = bz2.compress(raw, 1)
    elif kind == 2:
        whole = lzma.compress(raw, preset=0)
    elif kind == 3:
        whole = zlib.compress(raw, 1)
    elif kind == 4:
        whole = gzip.compress(gzip.compress(raw, 1), 1)
    else:
        whole = gzip.compress(raw, 1)
    return whole if rng.random() < 0.4 else damaged(whole, rng)


def repacked(scene: Scene) -> str:
    """A file is compressed, whole or damaged, under its own name."""
    rng = scene.rng
    path = scene.file()
    if path is None:
        return "no file"
    raw = path.read_bytes()
    if raw.startswith(b"\x1f\x8b"):
        raw = gzip.decompress(raw)
    path.write_bytes(packed(raw, rng))
    return f"{path.name} is compressed"


def bomb(scene: Scene) -> str:
    """A small file that unpacks to hundreds of megabytes; its beginning is honest."""
    rng = scene.rng
    path = scene.file()
    if path is None:
        return "no file"
    head = path.read_bytes()
    if head.startswith(b"\x1f\x8b"):
        head = gzip.decompress(head)
    kind = rng.randrange(len(_BOMBS))
    line = rng.choice(_LINES)
    path.write_bytes(_BOMBS[kind](head[: rng.choice((0, 4000, len(head)))], line))
    return f"{path.name} is a bomb of {line!r}: {_BOMBS[kind].__name__}"


def _gzip(head: bytes, line: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return _streamed(packer.compress, packer.flush, head, line, BOMB)


def _xz(head: bytes, line: bytes) -> bytes:
    packer = lzma.LZMACompressor(preset=0)
    return _streamed(packer.compress, packer.flush, head, line, BOMB // 2)


def _bzip2(head: bytes, line: bytes) -> bytes:
    packer = bz2.BZ2Compressor(9)
    return _streamed(packer.compress, packer.flush, head, line, BOMB // 8)


def _many_streams(head: bytes, line: bytes) -> bytes:
    """gzip streams one after the other."""
    return gzip.compress(head, 1) + gzip.compress(line * ((1 << 20) // len(line)), 1) * (BOMB >> 20)


def _large_dictionary(head: bytes, line: bytes) -> bytes:
    """An xz file that asks for more memory than it needs."""
    honest = lzma.compress(head + line, filters=[{"id": lzma.FILTER_LZMA2, "preset": 0}])
    # The byte behind the filter's id and size says the dictionary's size (xz's file format, 5.3.1).
    at = honest.find(b"\x21\x01")
    raw = honest[: at + 2] + bytes((40,)) + honest[at + 3 :]
    header = raw[12 : 12 + 4 * (raw[12] + 1) - 4]
    crc = zlib.crc32(header).to_bytes(4, "little")
    return raw[: 12 + len(header)] + crc + raw[16 + len(header) :]


def _zip(head: bytes, line: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("../../trace.json", head + line * (1 << 20))
    return file.getvalue()


def _streamed(
    compress: Callable[[bytes], bytes],
    flush: Callable[[], bytes],
    head: bytes,
    line: bytes,
    most: int,
) -> bytes:
    chunk = line * ((1 << 20) // len(line))
    parts = [compress(head), *(compress(chunk) for _ in range(most >> 20)), flush()]
    return b"".join(parts)


_BOMBS = (_gzip, _gzip, _xz, _bzip2, _many_streams, _large_dictionary, _zip)
