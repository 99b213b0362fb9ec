"""Reading files that a stranger may have written: regular, bounded, and never followed.

`root` is the folder that the user named: no link below it is followed, and nothing outside of it
is read (`mgpu_probes.outside.untrusted_files`).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from mgpu_probes.outside.terminal_text import clean
from mgpu_probes.outside.untrusted_files import Budget, OverBudgetError, open_below, within_budget

Json = Any
MOST_JSON = 1 << 20
MOST_WORDS = 1000
"""Of a command line."""
MOST_WORD = 4000
LAST_MOMENT = 4_102_444_800.0
"""The year 2100, in seconds since the epoch: clocks of no job are there."""
MOST_LINES_BYTES = 32 << 20
MOST_LINES = 200_000
MOST_LINE = 1 << 20
"""Bytes; the doctor writes a quarter of it at most (`recording.write`)."""


def read_bounded(path: Path, most: int, *, root: Path, at_end: bool = False) -> bytes:
    """Up to `most` bytes of a regular file; with `at_end` the last ones. Raises OSError."""
    with open(open_below(root, path), "rb") as file:
        if at_end:
            file.seek(max(0, os.fstat(file.fileno()).st_size - most))
        return file.read(most)


def read_object(path: Path, *, root: Path) -> dict[str, Json]:
    """One JSON object. Raises OSError, and ValueError where it is none."""
    raw = read_bounded(path, MOST_JSON, root=root)
    with within_budget() as budget:
        budget.take_json(raw)
    found = _parse(raw)
    if not isinstance(found, dict):
        raise ValueError(f"{path.name} holds no JSON object")
    return found


class Lines(NamedTuple):
    """JSON objects of a file, one a line. `bad`: lines that are none."""

    objects: tuple[Any, ...] = ()
    """Mappings, or what `quick` made of them."""
    bad: int = 0
    left_out: str | None = None
    """Why the rest of the lines was not read."""


def read_lines(path: Path, quick: Callable[[bytes], Any] | None = None, *, root: Path) -> Lines:
    """The JSON objects of a `.jsonl` file, the newest where it is too long; empty where there is
    no such file. A last line without its end is still being written and not counted as bad.
    `quick`: what to take instead of a line's object, where it is not None."""
    try:
        raw = read_bounded(path, MOST_LINES_BYTES, root=root, at_end=True)
    except OSError:
        return Lines()
    with within_budget() as budget:
        return _objects(raw, quick, budget)


def _objects(raw: bytes, quick: Callable[[bytes], Any] | None, budget: Budget) -> Lines:
    lines = raw.split(b"\n")
    last = lines.pop()
    objects: list[Any] = []
    bad = 0
    for line in [*lines[-MOST_LINES:], last]:
        if not line.strip():
            continue
        if len(line) > MOST_LINE:
            bad += 1
            continue
        try:
            budget.take_json(line)
        except OverBudgetError as error:
            return Lines(tuple(objects), bad, error.strerror)
        if quick is not None and (made := quick(line)) is not None:
            objects.append(made)
            continue
        try:
            found = _parse(line)
        except ValueError:
            found = None
        if isinstance(found, dict):
            objects.append(found)
        elif line is not last:
            bad += 1
    return Lines(tuple(objects), bad)


def number(value: Any) -> float | None:
    """A finite number, or None."""
    if type(value) is float:  # as nearly always: a cluster's samples hold millions
        return value if math.isfinite(value) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        real = float(value)
    except OverflowError:
        return None
    return real if math.isfinite(real) else None


def moment(value: Any) -> float | None:
    """Seconds since the epoch, or None for what no clock has shown: clocks and calendars are asked
    about it."""
    real = number(value)
    return real if real is not None and 0 <= real <= LAST_MOMENT else None


def whole(value: Any, least: int = 0, most: int = (1 << 63) - 1) -> int | None:
    """An integer within bounds, or None."""
    if type(value) is not int and (isinstance(value, bool) or not isinstance(value, int)):
        return None
    return value if least <= value <= most else None


def text(value: Any, limit: int = 500) -> str | None:
    """Harmless text, or None where it is no text or empty."""
    return (clean(value, limit) or None) if isinstance(value, str) else None


def words(value: Any) -> list[str] | None:
    """A command line as harmless texts, or None where it is no list."""
    if not isinstance(value, list):
        return None
    return [text(word, MOST_WORD) or "" for word in value[:MOST_WORDS]]


_DECODER = json.JSONDecoder(parse_constant=lambda _: None)


def _parse(raw: bytes) -> Json:
    try:
        return _DECODER.decode(raw.decode("utf-8", "replace"))
    except RecursionError:
        raise ValueError("nested too deeply") from None
