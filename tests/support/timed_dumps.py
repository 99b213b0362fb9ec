"""Dumps in the format of torch's flight recorder, as NCCL writes them where collectives are timed.

Written after torch/csrc/distributed/c10d/FlightRecorderDetail.hpp (torch 2.4 to 2.13); none of them
was recorded on a GPU."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

T0_NS = 1_790_000_000_000_000_000
PERIOD_NS = 10_000_000
"""Between the calls of two collectives."""


def timed_entry(sequence: int, milliseconds: float | None, **other: Any) -> dict[str, Any]:
    """An entry; `milliseconds` None: it was not timed, and torch leaves the key out."""
    timed = {} if milliseconds is None else {"duration_ms": milliseconds}
    return {
        "frames": [{"name": "step", "filename": "/home/me/train.py", "line": 41}],
        "record_id": sequence - 1,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": sequence,
        "p2p_seq_id": 0,
        "op_id": sequence,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": T0_NS + sequence * PERIOD_NS,
        "input_sizes": [[1024]],
        "input_dtypes": ["Float"],
        "output_sizes": [[1024]],
        "output_dtypes": ["Float"],
        "state": "completed",
        "time_discovered_started_ns": T0_NS + sequence * PERIOD_NS,
        "time_discovered_completed_ns": T0_NS + (sequence + 1) * PERIOD_NS,
        "retired": True,
        "timeout_ms": 600_000,
        "is_p2p": False,
        **timed,
        **other,
    }


def dump_of(entries: Sequence[Mapping[str, Any]], world: int) -> dict[str, Any]:
    """A rank's dump with one group of all ranks."""
    ranks = str(list(range(world)))
    return {
        "version": "2.10",
        "entries": list(entries),
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}},
        "pg_status": {},
    }


def write_dumps(
    folder: Path, milliseconds: Sequence[Sequence[float | None]], *, pickled: bool = True
) -> Path:
    """One dump per rank in `folder`. `milliseconds`: of each rank, for each collective."""
    folder.mkdir(exist_ok=True)
    for rank, times in enumerate(milliseconds):
        entries = [timed_entry(number, time) for number, time in enumerate(times, 1)]
        dump = dump_of(entries, len(milliseconds))
        if pickled:
            (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump, 2))
        else:
            (folder / f"trace_rank_{rank}.json").write_text(json.dumps(dump))
    return folder
