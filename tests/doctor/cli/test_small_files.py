"""Small files that unpack to much data: a command needs little more memory than for an ordinary
file."""

from __future__ import annotations

import gzip
import json
import lzma
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

MIB = 1 << 20
COMMAND = """
import sys
from pathlib import Path
from mgpu_doctor.cli import app
try:
    app(["diagnose", "--json", *sys.argv[1:]])
finally:
    status = Path("/proc/self/status").read_text().split()
    print(status[status.index("VmHWM:") + 1], file=sys.stderr)
"""


def peak(path: Path) -> int:
    """Most bytes that were resident while `path` was diagnosed."""
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1, 2, 3), done.stderr
    assert "Traceback" not in done.stderr
    return int(done.stderr.split()[-1]) << 10


def shared_references(folder: Path, *, honest: bool) -> Path:
    """One entry many times over, in it one tensor's shape many times over, in it one number."""
    times = 1 if honest else 500
    shapes = [[7] * min(times, 60)] * times
    entry = {"profiling_name": "nccl:all_reduce", "input_sizes": shapes, "output_sizes": shapes}
    path = folder / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps({"version": "2.10", "entries": [entry] * times}))
    return path


def packed_lists(folder: Path, *, honest: bool) -> Path:
    path = folder / "nccl_trace_rank_0.json.gz"
    empty = "[]" if honest else ",".join(["[]"] * 8_000_000)
    path.write_bytes(gzip.compress(f'{{"version": "2.10", "entries": [{empty}]}}'.encode()))
    return path


def packed_trace(folder: Path, *, honest: bool) -> Path:
    path = folder / "trace.json.gz"
    event = json.dumps({"ph": "X", "name": "aten::mm", "cat": "cpu_op", "ts": 1, "dur": 1})
    events = ",".join([event] * (1 if honest else 4_000_000))
    path.write_bytes(gzip.compress(f'{{"schemaVersion": 1, "traceEvents": [{events}]}}'.encode()))
    return path


def wide_window(folder: Path, *, honest: bool) -> Path:
    path = folder / "job.log.xz"
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 192 << 20}]
    lines = b"step 1 loss 2\n" * (1 if honest else 13_000_000)
    path.write_bytes(lzma.compress(lines, filters=None if honest else filters))
    return path


@pytest.mark.parametrize(
    ("make", "most"),
    [
        (shared_references, 96),
        (packed_lists, 96),
        (packed_trace, 96),
        (wide_window, 96),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_small_file_takes_little_memory(
    make: Callable[..., Path], most: int, tmp_path: Path
) -> None:
    """`most`: MiB above an honest file; without a budget they take 180 to 610."""
    for name in ("honest", "hostile"):
        (tmp_path / name).mkdir()
    honest = peak(make(tmp_path / "honest", honest=True))
    path = make(tmp_path / "hostile", honest=False)
    assert path.stat().st_size < MIB
    assert peak(path) - honest < most * MIB
