"""Divides a block of a log into pieces: lines, and updates of progress bars."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from mgpu_probes.outside.logs.log_shapes import LINE_ENDS
from mgpu_probes.outside.terminal_text import clean

WINDOW = 4000
"""Characters of a very long line that are searched."""
MORE = 500
CONTEXT = 3
CONTEXT_LIMIT = 200
TOLD_LIMIT = 1024
_ESCAPES = re.compile(
    rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[ -/]*[0-Z\\^-~])"
)
"""As in `terminal_text.py`, for bytes of unknown encoding and within a line."""


@dataclass(slots=True)
class Block:
    """A block of a log: its pieces, and those that report progress of the training."""

    pieces: Sequence[bytes]
    numbers: Sequence[int]
    counting: Sequence[int]
    counted: int
    """Pieces that report progress in all earlier blocks."""

    def counted_until(self, position: int) -> int:
        return self.counted + bisect_right(self.counting, position)

    @classmethod
    def of(
        cls,
        block: bytes,
        pieces: Sequence[bytes],
        counting: Sequence[int],
        lines: int,
        counted: int,
    ) -> Block:
        """`lines` and `counted`: totals of all earlier blocks."""
        return cls(pieces, _numbers(block, pieces, lines), counting, counted)

    def locate(self, position: int) -> tuple[int, bytes, int]:
        piece = self.pieces[position][:TOLD_LIMIT]
        return self.numbers[position], piece, self.counted_until(position)

    def around(self, position: int) -> tuple[str, ...]:
        """The non-empty lines around a position."""
        near = self.pieces[max(0, position - CONTEXT) : position + CONTEXT + 1]
        return tuple(clean(decoded(piece), CONTEXT_LIMIT) for piece in near if piece.strip())


def pieces_of(block: bytes) -> list[bytes]:
    return block.translate(LINE_ENDS).split(b"\n")


def bare(block: bytes) -> bytes:
    """The block without terminal escapes and NUL bytes."""
    if b"\0" in block:
        block = block.replace(b"\0", b"")
    return _ESCAPES.sub(b"", block) if b"\x1b" in block else block


def _numbers(block: bytes, pieces: Sequence[bytes], before: int) -> Sequence[int]:
    """The line number of each piece, from 1."""
    if len(pieces) == block.count(b"\n") + 1:
        return range(before + 1, before + 1 + len(pieces))
    return list(_counted(block, pieces, before))


def _counted(block: bytes, pieces: Iterable[bytes], before: int) -> Iterator[int]:
    place, number = -1, before + 1
    for piece in pieces:
        yield number
        place += len(piece) + 1
        number += block[place : place + 1] == b"\n"


def decoded(piece: bytes) -> str:
    piece = piece[: WINDOW + MORE]
    try:
        text = piece.decode("utf-8")
    except UnicodeDecodeError as error:
        cut = error.start >= len(piece) - 4  # in the middle of a character
        text = piece.decode("utf-8", "replace") if cut else piece.decode("latin-1")
    return text[:WINDOW] if text.isprintable() else clean(text, WINDOW)
