"""Reads untrusted files: regular files only, up to a limit, without following links.

`root` is the folder that the user named: no link below it is followed, and nothing outside of it
is read (`mgpu_probes.outside.untrusted_files`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
from mgpu_probes.outside.terminal_text import clean
from mgpu_probes.outside.untrusted_files import OverBudgetError, open_below, within_budget

if TYPE_CHECKING:
    from json import JSONDecoder

Json = Any
T = TypeVar("T")
MOST_JSON = 1 << 20
MOST_WORDS = 1000
"""Most words of a command line."""
MOST_WORD = 4000
LAST_MOMENT = 4_102_444_800.0
"""The year 2100, in seconds since the epoch: later times are not believed."""
MOST_LINES_BYTES = 32 << 20
MOST_LINES = 200_000
MOST_LINE = 1 << 20
"""Bytes; `recording.write` writes at most a quarter of it."""


def read_bounded(path: Path, most: int, *, root: Path, at_end: bool = False) -> bytes:
    """Up to `most` bytes of a regular file; with `at_end` the last ones. Raises OSError."""
    with open(open_below(root, path), "rb") as file:
        if at_end:
            file.seek(max(0, os.fstat(file.fileno()).st_size - most))
        return file.read(most)


def read_object(path: Path, *, root: Path) -> dict[str, Json]:
    """The JSON object in a file. Raises OSError; ValueError if it contains none."""
    raw = read_bounded(path, MOST_JSON, root=root)
    with within_budget() as budget:
        budget.take_json(raw)
    value = parse_json(raw)
    if not isinstance(value, dict):
        raise ValueError(f"{path.name} contains no JSON object")
    return value


class Lines(msgspec.Struct, Generic[T], frozen=True):
    """The facts in a file of lines."""

    facts: tuple[T, ...] = ()
    bad: int = 0
    """Lines that could not be read."""
    left_out: str | None = None
    """Why the rest of the lines was not read."""


def read_lines(
    path: Path, decode: Callable[[bytes], T | None], *, root: Path, most: int | None = None
) -> Lines[T]:
    """The decoded lines of a `.jsonl` file: the newest ones if it is too long, none if it is
    missing. `most`: bytes from which on only every second, third, … line is decoded.

    A line is bad if `decode` returns None, except an unfinished last line, which is still being
    written.
    """
    try:
        raw = read_bounded(path, MOST_LINES_BYTES, root=root, at_end=True)
    except OSError:
        return Lines()
    lines = raw.split(b"\n")
    last = lines.pop()
    every = 1 if most is None else max(1, math.ceil(len(raw) / most))
    facts: list[T] = []
    bad = 0
    with within_budget() as budget:
        for line in [*lines[-MOST_LINES:][::-every][::-1], last]:
            if not line.strip():
                continue
            if len(line) > MOST_LINE:
                bad += 1
                continue
            try:
                budget.take_json(line)
            except OverBudgetError as error:
                return Lines(tuple(facts), bad, error.strerror)
            fact = decode(line)
            if fact is not None:
                facts.append(fact)
            elif line is not last:
                bad += 1
    return Lines(tuple(facts), bad)


def number(value: Any) -> float | None:
    """The value if it is a finite number, else None."""
    if type(value) is float:  # the usual case: a cluster's samples contain millions
        return value if math.isfinite(value) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        real = float(value)
    except OverflowError:
        return None
    return real if math.isfinite(real) else None


def moment(value: Any) -> float | None:
    """Seconds since the epoch, or None for a time that no clock shows."""
    real = number(value)
    return real if real is not None and 0 <= real <= LAST_MOMENT else None


def whole(value: Any, least: int = 0, most: int = (1 << 63) - 1) -> int | None:
    """An integer within bounds, or None."""
    if type(value) is not int and (isinstance(value, bool) or not isinstance(value, int)):
        return None
    return value if least <= value <= most else None


def text(value: Any, limit: int = 500) -> str | None:
    """The text without control characters; None if it is empty or not a text."""
    return (clean(value, limit) or None) if isinstance(value, str) else None


def words(value: Any) -> list[str] | None:
    """A command line without control characters; None if it is not a list."""
    if not isinstance(value, list):
        return None
    return [text(word, MOST_WORD) or "" for word in value[:MOST_WORDS]]


@cache
def _decoder() -> JSONDecoder:
    from json import JSONDecoder  # not needed on a machine without a job

    return JSONDecoder(parse_constant=lambda _: None)


def parse_json(raw: bytes) -> Json:
    """The parsed JSON; NaN and infinities are None. Raises ValueError."""
    try:
        return _decoder().decode(raw.decode("utf-8", "replace"))
    except RecursionError:
        raise ValueError("nested too deeply") from None
