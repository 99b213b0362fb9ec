"""Every recorded step of every rank as Parquet, a row group a rank. Needs pyarrow, an extra."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mgpu_doctor.case.model import Case, Rank, Records
from mgpu_doctor.export.files.columns import columns
from mgpu_doctor.export.files.writing import draft
from mgpu_doctor.recording.box import STEP_DTYPE
from mgpu_doctor.report import text


def write(path: Path, case: Case) -> int:
    """Bytes written. Raises `OSError` and leaves no debris. A job without steps gives a file
    with the columns and no row."""
    nothing = _steps(np.zeros(0, STEP_DTYPE), 0.0)
    schema = pa.table({**_of(None, 0), **nothing}).schema
    with draft(path) as file:
        with pq.ParquetWriter(file, schema, compression="zstd") as writer:
            for rank in (*case.earlier, *case.ranks):
                if len(rank.steps):
                    same = _of(rank, len(rank.steps))
                    writer.write_table(
                        pa.table({**same, **_steps(rank.steps, rank.clock_offset)}, schema)
                    )
        return int(file.tell())


def _of(rank: Rank | None, count: int) -> dict[str, Any]:
    """What is the same in all rows of a rank."""
    kinds = {"rank": pa.int64(), "host": pa.string(), "pid": pa.int64(), "attempt": pa.int64()}
    values = {name: getattr(rank, name, None) for name in kinds}
    if values["host"] is not None:
        values["host"] = text.line(values["host"])
    return {name: pa.repeat(pa.scalar(value, kinds[name]), count) for name, value in values.items()}


def _steps(steps: Records, clock_offset: float) -> dict[str, Any]:
    return {
        name: pa.array(np.ascontiguousarray(column.data), mask=np.ma.getmaskarray(column))
        for name, column in columns(steps, clock_offset).items()
    }
