"""Every recorded step of every rank as a line of CSV. What was not measured is an empty cell."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator

from mgpu_probes.inprocess.layout import PHASES, WARM_UP

from mgpu_doctor.case.model import Case, Rank
from mgpu_doctor.export.files.cells import cell
from mgpu_doctor.export.files.rows import rows

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
)
"""`ended`: seconds since the epoch; `cpu_seconds`: of the main thread."""


def lines(case: Case) -> Iterator[str]:
    """The file, line by line."""
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
        )


def _known(value: float) -> str | None:
    return None if math.isnan(value) else f"{value:.9g}"


def _line(cells: tuple[object, ...]) -> str:
    """All cells are numbers or made by `cell`."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(cells)
    return out.getvalue()
