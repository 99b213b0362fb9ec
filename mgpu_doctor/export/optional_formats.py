"""Recorded steps as Parquet (needs pyarrow) and as TensorBoard scalars (needs tensorboardX)."""

from __future__ import annotations

import contextlib
import math
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mgpu_doctor.case.model import Case, Rank
from mgpu_doctor.case.process_metadata import PhaseClock
from mgpu_doctor.export.step_table import Column, columns, draft, steps_as_columns
from mgpu_doctor.findings import Diagnosis
from mgpu_doctor.recording.box import STEP_DTYPE
from mgpu_doctor.recording.write import private_folder
from mgpu_doctor.report import text


def write_parquet(path: Path, case: Case) -> int:
    """Returns the bytes written. Raises `OSError`, and then leaves no file. A job without steps
    gives a file with columns but no rows."""
    nothing = _arrays(steps_as_columns(np.zeros(0, STEP_DTYPE), 0.0, PhaseClock.CPU.value))
    schema = pa.table({**_of(None, 0), **nothing}).schema
    with draft(path) as file:
        with pq.ParquetWriter(file, schema, compression="zstd") as writer:
            for rank in (*case.earlier, *case.ranks):
                if len(rank.steps):
                    same = _of(rank, len(rank.steps))
                    writer.write_table(pa.table({**same, **_arrays(columns(rank))}, schema))
        return int(file.tell())


def _of(rank: Rank | None, count: int) -> dict[str, Any]:
    """Returns the columns that are the same in all rows of a rank."""
    kinds = {"rank": pa.int64(), "host": pa.string(), "pid": pa.int64(), "attempt": pa.int64()}
    values = {name: getattr(rank, name, None) for name in kinds}
    if values["host"] is not None:
        values["host"] = text.line(values["host"])
    return {name: pa.repeat(pa.scalar(value, kinds[name]), count) for name, value in values.items()}


def _arrays(columns: dict[str, Column]) -> dict[str, Any]:
    return {
        name: pa.array(np.ascontiguousarray(column.data), mask=np.ma.getmaskarray(column))
        for name, column in columns.items()
    }


MOST_RANKS = 64
"""The most ranks: more curves cannot be distinguished. Culprits of findings come first."""
LEFT_OUT = ("step", "ended", "warm_up", "collectives", "micro_batches", "clock")


def write_scalars(folder: Path, diagnosis: Diagnosis) -> tuple[int, int]:
    """Returns the number of ranks written and of all ranks. Raises `OSError`, also if the folder is
    not empty: TensorBoard would merge its content with this run."""
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(17, "it is not empty; name a new or empty folder")
    chosen, made = _chosen(diagnosis), not folder.exists()
    private_folder(folder)
    try:
        for rank in chosen:
            _write(folder / f"rank-{rank.rank}", rank)
    except OSError:
        _clear(folder, chosen, itself=made)
        raise
    return len(chosen), len(diagnosis.case.ranks)


def _write(folder: Path, rank: Rank) -> None:
    """Writes a rank's scalars in this thread: a SummaryWriter waits for ever for its own thread,
    which ends on a full disk."""
    from tensorboardX.event_file_writer import EventsWriter  # loads torch, where it is installed
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.summary import scalar

    private_folder(folder)
    writer = EventsWriter(str(folder / "events"))
    for tag, value, step, at in _scalars(rank):
        writer.write_event(Event(wall_time=at, step=step, summary=scalar(tag, value)))
    writer.close()


def _clear(folder: Path, ranks: Iterable[Rank], *, itself: bool) -> None:
    """Removes only the files written by us."""
    for rank in ranks:
        shutil.rmtree(folder / f"rank-{rank.rank}", ignore_errors=True)
    if itself:
        with contextlib.suppress(OSError):
            folder.rmdir()


def _chosen(diagnosis: Diagnosis) -> list[Rank]:
    blamed = {culprit.rank for finding in diagnosis.findings for culprit in finding.culprits}
    known = [rank for rank in diagnosis.case.ranks if rank.rank is not None and len(rank.steps)]
    return sorted(known, key=lambda rank: rank.rank not in blamed)[:MOST_RANKS]


def _scalars(rank: Rank) -> Iterator[tuple[str, float, int, float]]:
    """Yields tag, value, step and seconds since the epoch of all known values."""
    named = columns(rank)
    steps, ends = named["step"].tolist(), named["ended"].tolist()
    for name, column in named.items():
        if name in LEFT_OUT:
            continue
        is_phase = name.endswith("_seconds") and name not in ("step_seconds", "run_ahead_seconds")
        tag = f"phases/{name}" if is_phase else name
        values: Iterable[float | None] = column.tolist()
        for value, step, at in zip(values, steps, ends, strict=True):
            if value is not None and math.isfinite(value):
                yield tag, value, step, at
