"""Recorded steps as a table, and as a CSV file. Made line by line, so that no job is too large."""

from __future__ import annotations

import csv
import gzip
import io
import math
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from mgpu_probes.inprocess.layout import PHASES, UNTIMED, WARM_UP

from mgpu_doctor.case.device_times import device_times
from mgpu_doctor.case.model import Case, Rank, Records
from mgpu_doctor.case.process_metadata import PhaseClock
from mgpu_doctor.case.rank_device import record_clock
from mgpu_doctor.report import text

AT_ONCE = 1024
DEVICE = PhaseClock.DEVICE.value


def rows(rank: Rank) -> Iterator[dict[str, Any]]:
    """Yields field name -> value for each step. `phases`: seconds, by the device's clock if it
    timed the step. `clock`: which clock timed them. `run_ahead`: minimum seconds by which the host
    was ahead of the device when backward began; None if unknown."""
    names = rank.steps.dtype.names or ()
    places, times = device_times(rank)
    measured = zip(times["phases"].tolist(), times["least_lead"].tolist(), strict=True)
    timed = dict(zip(places.tolist(), measured, strict=True))
    usual = record_clock(rank).value
    for begin in range(0, len(rank.steps), AT_ONCE):
        some = rank.steps[begin : begin + AT_ONCE]
        pairs = zip(some.copy().tolist(), some["phases"].tolist(), strict=True)
        for place, (record, phases) in enumerate(pairs, begin):
            row = dict(zip(names, record, strict=True))
            if row["flags"] & UNTIMED:
                row |= dict.fromkeys(COUNTED)
            if place in timed:
                seconds, lead = timed[place]
                yield {**row, "phases": seconds, "clock": DEVICE, "run_ahead": lead}
            else:
                yield {**row, "phases": phases, "clock": usual, "run_ahead": None}


Column = np.ma.MaskedArray[Any, np.dtype[Any]]

UNKNOWN_IF_ZERO = ("samples", "tokens", "device_bytes")
COUNTED = ("collectives", "micro_batches")
SECONDS = {"gc_seconds": "gc_s", "cpu_seconds": "cpu_s"}


def columns(rank: Rank) -> dict[str, Column]:
    """Returns column name, as in the CSV file -> one value per step, in seconds, bytes or counts;
    `ended` in seconds since the epoch."""
    places, times = device_times(rank)
    table = steps_as_columns(rank.steps, rank.clock_offset, record_clock(rank).value)
    if len(places):
        for place, phase in enumerate(PHASES):
            values = np.ma.getdata(table[f"{phase}_seconds"]).copy()
            values[places] = times["phases"][:, place]
            table[f"{phase}_seconds"] = np.ma.masked_invalid(values)
        table["clock"][places] = DEVICE
        leads = np.full(len(rank.steps), np.nan)
        leads[places] = times["least_lead"]
        table["run_ahead_seconds"] = np.ma.masked_invalid(leads)
    return table


def steps_as_columns(steps: Records, clock_offset: float, clock: str) -> dict[str, Column]:
    """Returns the same from step records only, whose phases are by that clock."""
    table: dict[str, Column] = {
        "step": _all(steps["step"]),
        "ended": _all(steps["end_ns"] * 1e-9 + clock_offset),
        "step_seconds": _all(steps["wall_ns"] * 1e-9),
    }
    for place, phase in enumerate(PHASES):
        table[f"{phase}_seconds"] = np.ma.masked_invalid(steps["phases"][:, place])
    table["warm_up"] = _all(steps["flags"] & WARM_UP != 0)
    table["loss"] = np.ma.masked_invalid(steps["loss"])
    for name, field in SECONDS.items():
        table[name] = np.ma.masked_invalid(steps[field])
    is_untimed = steps["flags"] & UNTIMED != 0
    for name in UNKNOWN_IF_ZERO:
        table[name] = np.ma.masked_equal(steps[name].astype(np.int64), 0)
    for name in COUNTED:
        counts = steps[name].astype(np.int64)
        table[name] = np.ma.masked_where(is_untimed, counts) if is_untimed.any() else _all(counts)
    table["clock"] = _all(np.full(len(steps), clock, "<U6"))
    table["run_ahead_seconds"] = np.ma.masked_invalid(np.full(len(steps), np.nan))
    return table


def _all(values: npt.NDArray[Any]) -> Column:
    return np.ma.masked_array(np.ascontiguousarray(values), mask=np.ma.nomask)


STARTS = "=+\\-@＝＋－＠﹦﹢﹣﹫⁼⁺⁻−"
"""First characters of a formula (OWASP, CSV injection), also full-width, small and raised; a cell
never contains tabs or carriage returns. For use inside a regular expression's brackets."""
_RISKY = re.compile(rf"(^|[,;|])(?=[^\w,;|{STARTS}]*[{STARTS}])")
"""The start of a cell, also for programs that split at other separators than ours, if its first
character after white space, quotes and other marks starts a formula."""


def cell(words: str | None) -> str | None:
    """Returns `words` on one line without control characters, with `'` before anything that starts
    a formula."""
    return None if words is None else _RISKY.sub(r"\1'", text.line(words))


MANY = 1 << 20
"""Characters per write."""


def write(path: Path, pieces: Iterable[str]) -> int:
    """Writes the file; returns its bytes. Raises `OSError`, and then leaves no file."""
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
    """Yields a private file that becomes `path` on success and is removed on failure."""
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


COLUMNS = (
    "rank",
    "host",
    "pid",
    "attempt",
    "step",
    "ended",
    "step_seconds",
    *(f"{phase}_seconds" for phase in PHASES),
    "warm_up",
    "samples",
    "tokens",
    "loss",
    "gc_seconds",
    "cpu_seconds",
    "collectives",
    "micro_batches",
    "device_bytes",
    "clock",
    "run_ahead_seconds",
)
"""`ended`: seconds since the epoch. `cpu_seconds`: of the main thread. `clock`: of the phases.
`run_ahead_seconds`: minimum by which the host was ahead of the device."""


def lines(case: Case) -> Iterator[str]:
    """Yields the file, line by line."""
    yield _line(tuple(map(cell, COLUMNS)))
    for rank in (*case.earlier, *case.ranks):
        who = (rank.rank, cell(rank.host), rank.pid, rank.attempt)
        yield from (_line((*who, *cells)) for cells in _steps(rank))


def _steps(rank: Rank) -> Iterator[tuple[object, ...]]:
    for record in rows(rank):
        yield (
            record["step"],
            f"{record['end_ns'] * 1e-9 + rank.clock_offset:.6f}",
            f"{record['wall_ns'] * 1e-9:.9f}",
            *(_known(seconds) for seconds in record["phases"]),
            int(bool(record["flags"] & WARM_UP)),
            record["samples"] or None,
            record["tokens"] or None,
            _known(record["loss"]),
            _known(record["gc_s"]),
            _known(record["cpu_s"]),
            record["collectives"],
            record["micro_batches"],
            record["device_bytes"] or None,
            record["clock"],
            None if record["run_ahead"] is None else _known(record["run_ahead"]),
        )


def _known(value: float) -> str | None:
    return None if math.isnan(value) else f"{value:.9g}"


def _line(cells: tuple[object, ...]) -> str:
    """Returns one line. All cells are numbers or made by `cell`."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(cells)
    return out.getvalue()
