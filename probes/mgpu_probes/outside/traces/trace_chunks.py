"""Cuts a trace file into pieces of whole events while it is decompressed.

Only one piece is in memory at any moment, however large the file is or claims to be."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from mgpu_probes.outside.traces.trace_columns import NotATraceError
from mgpu_probes.outside.untrusted_files import (
    OverBudgetError,
    open_below,
    open_named,
    within_budget,
)

CHUNK = 1 << 20
"""Bytes that are read, and at most decompressed, at a time."""
MOST_PIECE = 16 << 20
"""Bytes of the largest event or header."""
MOST_BYTES = 64 << 30
"""Of one unpacked trace."""
_GZIP = b"\x1f\x8b"
_BETWEEN = re.compile(rb"\}\s*,\s*\{")
_LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
_SPACE = b" \t\r\n"


@dataclass(slots=True)
class Pieces:
    """Of one file: iterate, then read what came before and after the events."""

    path: Path
    root: Path | None = None
    """The folder that the user named, below which the file lies; None: the file itself."""
    head: bytes = b"{}"
    """The object around the events, with an empty list of events."""
    cut: str | None = None
    _left: bytes = field(default=b"", init=False)

    def __iter__(self) -> Iterator[bytes]:
        """Events with commas between them, some thousands at a time; the last piece also holds
        what closes the file. A piece may end within a list that an event holds: `glued` then."""
        chunks = self._unpacked()
        rest = self._begin(chunks)
        for chunk in chunks:
            rest += chunk
            place = _last_between(rest)
            if place is not None:
                yield rest[: place[0]]
                rest = rest[place[1] :]
            elif len(rest) > MOST_PIECE:
                self.cut = f"an event of more than {MOST_PIECE >> 20} MiB"
                return
        if rest:
            yield rest

    def _begin(self, chunks: Iterator[bytes]) -> bytes:
        """Reads the header; what follows it."""
        seen = b""
        for chunk in chunks:
            seen += chunk
            if seen.lstrip(_SPACE).startswith(b"["):
                return seen.lstrip(_SPACE)[1:]
            found = _LIST.search(seen)
            if found is not None:
                self.head = seen[: found.end()] + b"]}"
                return seen[found.end() :]
            if len(seen) > MOST_PIECE:
                break
        raise NotATraceError(self.cut or f"{self.path.name} holds no list of trace events")

    def _unpacked(self) -> Iterator[bytes]:
        total = 0
        with (
            within_budget() as budget,
            open(open_trace(self.path, self.root), "rb", buffering=0) as file,
        ):
            disk = budget.admit(os.fstat(file.fileno()))
            packed = file.read(2) == _GZIP
            file.seek(0)
            raw = iter(lambda: file.read(CHUNK), b"")
            for chunk in self._gunzipped(raw) if packed else raw:
                try:
                    budget.unpacked(disk, total, len(chunk))
                except OverBudgetError as error:
                    self.cut = error.strerror
                    return
                total += len(chunk)
                if total > MOST_BYTES:
                    self.cut = f"it is larger than {MOST_BYTES >> 30} GiB"
                    return
                yield chunk

    def _gunzipped(self, raw: Iterator[bytes]) -> Iterator[bytes]:
        unpacker = zlib.decompressobj(wbits=31)
        try:
            for chunk in raw:
                waiting = chunk
                while waiting and not unpacker.eof:
                    yield unpacker.decompress(waiting, CHUNK)
                    waiting = unpacker.unconsumed_tail
            if not unpacker.eof:
                yield unpacker.flush()
                self.cut = "the compressed file ends early"
        except zlib.error:
            self.cut = "the compressed file is damaged"


def open_trace(path: Path, root: Path | None) -> int:
    """A descriptor of the file: as the user named it, or below the folder that the user named.
    Raises OSError."""
    return open_named(path) if root is None else open_below(root, path)


def _last_between(rest: bytes) -> tuple[int, int] | None:
    """After the closing brace, and before the opening one, of the last two events."""
    for reach in (1 << 14, 1 << 18, len(rest)):
        begin = max(0, len(rest) - reach)
        found = None
        for found in _BETWEEN.finditer(rest, begin):  # noqa: B007 - the last one is wanted
            pass
        if found is not None:
            return found.start() + 1, found.end() - 1
        if not begin:
            return None
    return None
