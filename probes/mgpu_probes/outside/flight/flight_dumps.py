"""Reads flight-recorder dumps from disk: one file per rank, pickled or JSON, plain or gzipped.

Files are untrusted: nothing in them is executed, and reading has a budget. `case.flight_records`
makes typed records of the result.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from pathlib import Path
from typing import Any

from mgpu_probes.outside.flight.flight_format import FORM, normalize_dump
from mgpu_probes.outside.torch_pickles import MOST_BYTES, NotAFlightError, unpickle
from mgpu_probes.outside.untrusted_files import (
    MOST_AT_ONCE,
    UNPACKED,
    Budget,
    OverBudgetError,
    open_below,
    within_budget,
)

SYMBOLISING = 15.0
"""Seconds by which a dump with call stacks may be older than its file, because torch resolves the
names of all frames before it writes (measured with torch 2.13: 1 to 10 s for the first dump)."""
MOST_RANK = (1 << 20) - 1
_ENDINGS = re.compile(r"\.(?:gz|json|pkl|pickle|pt|bin|trace|dump|txt)$", re.IGNORECASE)
_RANK = re.compile(r"rank[ _.\-]?(\d{1,7})(?!\d)", re.IGNORECASE)
_LAST_NUMBER = re.compile(r"(\d{1,7})$")
_GZIP = b"\x1f\x8b"


def read_dump(path: Path, root: Path | None = None) -> dict[str, Any]:
    """The plain form (see `flight_format`) of a file below `root`, without following links.
    `root` None: its own folder.

    `rank` comes from the file's name if the dump does not contain it: torch appends the number to
    its prefix (`nccl_trace_rank_3`). `at` is when the file was last written.
    Raises NotAFlightError, also if the file cannot be read.
    """
    with within_budget():
        try:
            raw, written = _read(path, root or path.parent)
        except OSError as error:
            raise NotAFlightError(f"it cannot be read: {error.strerror or error}") from None
        read = parse_dump(raw, source=path.name)
    if read["rank"] is None:
        read["rank"] = rank_by_name(path.name)
    if read["at"] is None:
        stacks = any(
            isinstance(collective, dict) and collective.get("stack")
            for collective in read["collectives"]
        )
        read |= {"at": written, "slack": SYMBOLISING if stacks else 0.0}
    return read


def parse_dump(raw: bytes, *, source: str) -> dict[str, Any]:
    """The plain form of a dump's bytes: torch's pickle or JSON, or the form itself.

    Raises NotAFlightError.
    """
    with within_budget() as budget:
        try:
            if raw[:2] == _GZIP:
                raw = _unzip(raw, budget)
            if not raw.strip():
                raise NotAFlightError("it is empty")
            is_json = raw.lstrip()[:1] in (b"{", b"[")
            content = _json(raw, budget) if is_json else unpickle(raw)
            if isinstance(content, dict) and content.get("form") == FORM:
                if not isinstance(content.get("collectives"), list):
                    raise NotAFlightError("it holds no collectives")
                return {**_EMPTY, **content}
            return normalize_dump(content, source=source, budget=budget)
        except OverBudgetError as error:
            raise NotAFlightError(error.strerror) from None


def rank_by_name(name: str) -> int | None:
    """`3` of `nccl_trace_rank_3`, `trace_3.json.gz`, `rank3-of-8`; None if the name has no rank."""
    while _ENDINGS.search(name):
        name = _ENDINGS.sub("", name)
    match = _RANK.search(name) or _LAST_NUMBER.search(name)
    number = int(match.group(1)) if match else None
    return number if number is not None and number <= MOST_RANK else None


_EMPTY: dict[str, Any] = {"rank": None, "at": None}


def _read(path: Path, root: Path) -> tuple[bytes, float]:
    """A regular file's bytes and when they were written. Raises OSError, NotAFlightError."""
    with open(open_below(root, path), "rb") as file:
        status = os.fstat(file.fileno())
        if status.st_size > MOST_BYTES:
            raise NotAFlightError(f"it is longer than {MOST_BYTES >> 20} MiB")
        return file.read(MOST_BYTES + 1), status.st_mtime


def _unzip(raw: bytes, budget: Budget) -> bytes:
    """The decompressed bytes. Raises NotAFlightError if damaged or too large."""
    unpacker = zlib.decompressobj(wbits=31)
    try:
        plain = unpacker.decompress(raw, min(MOST_BYTES, max(MOST_AT_ONCE, UNPACKED * len(raw))))
    except zlib.error:
        raise NotAFlightError("it is a damaged gzip file") from None
    if not unpacker.eof:
        raise NotAFlightError("it is a gzip file that is cut short or far too long")
    budget.unpacked(len(raw), 0, len(plain))
    return plain


def _json(raw: bytes, budget: Budget) -> Any:
    budget.take_json(raw)
    try:
        return json.loads(raw.decode("utf-8", "replace"), parse_int=_integer, parse_constant=_none)
    except RecursionError:
        raise NotAFlightError("it is nested too deeply") from None
    except ValueError as error:
        raise NotAFlightError(
            f"it is neither a pickle nor valid JSON: {str(error)[:120]}"
        ) from None


def _integer(digits: str) -> int:
    if len(digits) > 40:
        raise NotAFlightError("it holds an integer of absurd length")
    return int(digits)


def _none(_: str) -> None:
    """Reads NaN and infinity, which some writers of JSON use, as None."""
