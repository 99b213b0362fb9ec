"""Log files as blocks of bytes: plain or compressed, of any encoding, finished or still growing.

A block ends at the end of a line, except within lines longer than `LONGEST`, which are cut into
pieces that overlap. Memory use is a few blocks, whatever the file's size."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import os
import re
import stat
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

from mgpu_probes.outside.untrusted_files import OverBudgetError, open_below, within_budget

BLOCK = 1 << 20
LONGEST = 1 << 18
"""Bytes of a line from which it is divided into pieces."""
OVERLAP = 1 << 10
MOST_BYTES = 1 << 36
"""Decompressed bytes of a log that are read; a note reports that the rest was left out."""
UNPACKED_A_SECOND = 16 << 20
"""Unpacked bytes that add a second to the budget: tracebacks, which are read most slowly, are read
at this rate (benchmarks/logs.py). A megabyte on disk must not take longer than ten seconds."""
HEAD = 1 << 16
STDIN = "-"

XZ_MEMORY = 80 << 20
"""Bytes that the decoder of an xz file may take: `xz -9` makes files that need 65 MiB."""
_UNKNOWN = {
    b"\x28\xb5\x2f\xfd": "zstd -dc",
    b"PK\x03\x04": "unzip -p",
    b"\x04\x22\x4d\x18": "lz4 -dc",
}
"""Compressions that not every Python can read -> a command that decompresses them."""
_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_NOT_IN_TEXT = bytes([*range(1, 8), *range(14, 27), *range(28, 32), 127])
_ODD_SHARE = 0.05
"""Share of control characters from which bytes are no text: random bytes have 0.11, a log with
colours none (escape, backspace and NUL are not counted)."""
_DAMAGED = (EOFError, OSError, zlib.error, lzma.LZMAError)
_SAYS_RANK = re.compile(r"(?:^|[^A-Za-z0-9])(?:global_?)?rank[_\-.]?(\d{1,7})(?!\d)", re.IGNORECASE)
_NUMBERED = (
    re.compile(r"(?:^|/)(\d{1,6})/(?:stdout|stderr)(?:\.log|\.txt)?(?:\.gz)?$"),  # torchrun
    re.compile(r"(?:^|/)rank\.(\d{1,6})/std(?:out|err)$"),  # Horovod, mpirun --output-filename
    re.compile(r"(?:^|/)slurm-\d+[_\-](\d{1,6})\.(?:out|err|log)(?:\.gz)?$"),
)


class UnreadableLog(ValueError):  # noqa: N818 - a name of the house's interface
    """The log cannot be read. The message is a sentence that says what to do."""


class NoText(UnreadableLog):
    """The file does not contain text."""


@dataclass(slots=True)
class Log:
    """An open log. `notes` is complete once all blocks were read: what was left out, and why."""

    name: str
    file: BinaryIO
    size: int | None
    """Bytes that it held when it was opened; None: a stream or compressed."""
    modified: float | None = None
    """Seconds since the epoch; None: a stream."""
    notes: list[str] = field(default_factory=list)
    disk: int | None = None
    """Bytes on disk; None: a stream, which the user ends."""

    def blocks(self) -> Iterator[bytes]:
        """Its text as UTF-8 (other bytes than text are kept), in whole lines. Closes it. Raises
        NoText."""
        with self.file:
            yield from _whole_lines(_as_utf8(self))


def open_log(path: Path | str, *, root: Path | None = None) -> Log:
    """Opens what the user named: a file (also through a link), a pipe, or `-` for standard input.
    With `root`, a folder that the user named, a regular file below it, through no link.

    Raises UnreadableLog.
    """
    if str(path) == STDIN:
        return Log("standard input", _decompressed(sys.stdin.buffer, "standard input"), None)
    name = os.fspath(path)
    try:
        if root is None:
            descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        else:
            descriptor = open_below(root, name)
    except FileNotFoundError:
        raise UnreadableLog(f"{name} does not exist.") from None
    except PermissionError:
        raise UnreadableLog(f"You may not read {name}: ask its owner for access.") from None
    except (OSError, ValueError) as error:
        raise UnreadableLog(f"{name} cannot be opened ({_reason(error)}).") from None
    status = os.fstat(descriptor)
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISFIFO(status.st_mode)):
        os.close(descriptor)
        raise UnreadableLog(f"{name} is neither a file nor a pipe: name the log itself.")
    os.set_blocking(descriptor, True)
    plain = os.fdopen(descriptor, "rb", buffering=HEAD)
    file = _decompressed(plain, name)
    if not stat.S_ISREG(status.st_mode):
        return Log(name, file, None)
    with within_budget() as budget:
        disk = budget.admit(status)
    size = status.st_size if file is plain else None
    return Log(name, file, size, status.st_mtime, disk=disk)


def _decompressed(file: BinaryIO, name: str) -> BinaryIO:
    """The file, or a decompressing reader. Raises UnreadableLog for unknown compressions."""
    head = file.peek(8)[:8]  # type: ignore[attr-defined]  # both kinds of input are buffered readers
    for magic, tool in _UNKNOWN.items():
        if head.startswith(magic):
            file.close()
            raise UnreadableLog(
                f"{name} has a compression that cannot be read here: pipe it in with "
                f"`{tool} {name} | mgpu-doctor diagnose -`."
            )
    if head.startswith(b"\x1f\x8b"):
        return cast(BinaryIO, gzip.open(file, "rb"))
    if head.startswith(b"BZh"):
        return cast(BinaryIO, bz2.open(file, "rb"))
    if head.startswith(b"\xfd7zXZ\x00"):
        return io.BufferedReader(_Xz(file), HEAD)
    return file


class _Xz(io.RawIOBase):
    """Decompresses the streams of an xz file in bounded memory: the file itself declares how much
    memory its decoder needs, and Python's own reader trusts it."""

    def __init__(self, packed: BinaryIO) -> None:
        self._packed = packed
        self._decoder = self._fresh()

    def _fresh(self) -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            raw = b""
            if self._decoder.eof:
                left = self._decoder.unused_data or self._packed.read(HEAD)
                raw = left.lstrip(b"\0")  # padding between streams
                if not raw:
                    if left:
                        continue
                    return 0
                self._decoder = self._fresh()
            elif self._decoder.needs_input and not (raw := self._packed.read(HEAD)):
                raise EOFError("the compressed file ends early")
            unpacked = self._decoder.decompress(raw, len(buffer))
            if unpacked:
                buffer[: len(unpacked)] = unpacked
                return len(unpacked)

    def close(self) -> None:
        self._packed.close()
        super().close()


def _as_utf8(log: Log) -> Iterator[bytes]:
    chunks = _chunks(log)
    head = next(chunks, b"")
    mark, encoding = next(
        ((mark, name) for mark, name in _BOMS if head.startswith(mark)), (b"", _guessed(head))
    )
    if encoding == "utf-8":
        if not _is_text(head):
            raise NoText(f"{log.name} is not text: name a console log.")
        yield head[len(mark) :]
        yield from chunks
        return
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    yield decoder.decode(head[len(mark) :]).encode("utf-8", "replace")
    for chunk in chunks:
        yield decoder.decode(chunk).encode("utf-8", "replace")


def _chunks(log: Log) -> Iterator[bytes]:
    """The content at the time of opening: a growing file may grow faster than it is read."""
    left = MOST_BYTES if log.size is None else min(log.size, MOST_BYTES)
    capped = left == MOST_BYTES
    total = 0
    while left > 0:
        try:
            chunk = log.file.read(min(BLOCK, left))
            if log.disk is not None:
                with within_budget() as budget:
                    budget.unpacked(log.disk, total, len(chunk), UNPACKED_A_SECOND)
        except OverBudgetError as error:
            log.notes.append(f"the rest of {log.name} was left out: {error.strerror}")
            return
        except _DAMAGED as error:
            log.notes.append(f"{log.name} is damaged or cut short: {_reason(error)}")
            return
        if not chunk:
            return
        left -= len(chunk)
        total += len(chunk)
        yield chunk
    if capped:
        log.notes.append(f"of {log.name} only the first {MOST_BYTES >> 30} GiB were read")


def _whole_lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        block = rest + chunk if rest else chunk
        cut = max(block.rfind(b"\n"), block.rfind(b"\r")) + 1
        if len(block) - cut > LONGEST:
            yield block
            rest = block[-OVERLAP:]
            continue
        if cut:
            yield block[:cut]
        rest = block[cut:]
    if rest:
        yield rest


def _guessed(head: bytes) -> str:
    """The encoding by its first bytes: ASCII in UTF-16 has a zero in every second byte."""
    sample = head[: HEAD & ~1]
    half = len(sample) // 2
    if half > 8:
        for name, first, second in (("utf-16-le", 0, 1), ("utf-16-be", 1, 0)):
            full, empty = sample[first::2], sample[second::2]
            if empty.count(0) > 0.7 * half and full.count(0) < 0.1 * half:
                return name
    return "utf-8"


def _is_text(head: bytes) -> bool:
    sample = head[:HEAD].replace(b"\0", b"")
    odd = len(sample) - len(sample.translate(None, _NOT_IN_TEXT))
    return odd <= _ODD_SHARE * len(sample)


def _reason(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def ranks_from_names(names: Sequence[str]) -> list[int | None]:
    """The rank behind each name, or None.

    A name with `rank` is trusted. A bare number (torchrun's folders, Slurm's tasks) counts only if
    several names differ in it: alone it may be anything.
    """
    said = [int(found[1]) if (found := _SAYS_RANK.search(_base(name))) else None for name in names]
    if any(rank is not None for rank in said):
        return said
    for form in _NUMBERED:
        matches = [form.search(name) for name in names]
        if len({match[1] for match in matches if match}) > 1:
            return [int(match[1]) if match else None for match in matches]
    return said


def _base(name: str) -> str:
    """The names of the file and of its folder."""
    return "/".join(name.split("/")[-2:])
