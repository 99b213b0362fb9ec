"""What the benchmarks share: a line about the machine, and runs of whole commands."""

from __future__ import annotations

import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
JOBS = ROOT / "tests/jobs"
DOCTOR = (sys.executable, "-m", "mgpu_doctor")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")

STEADY = (
    ("OMP_NUM_THREADS", "1"),
    ("MALLOC_TRIM_THRESHOLD_", str(1 << 30)),
    ("MALLOC_MMAP_THRESHOLD_", str(32 << 20)),
)
"""Without the latter two, glibc makes some processes slower than others by chance (it returns
memory and requests it again in every step): a defect of its own, which the doctor names."""


@dataclass(frozen=True)
class Run:
    """One finished command. CPU seconds are those of its whole process tree."""

    exit_code: int
    wall: float
    cpu: float


def machine() -> str:
    """One line that describes the machine of the measurement."""
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return (
        f"{os.cpu_count()} cores ({model}), Python {platform.python_version()}, "
        f"{platform.system()} {platform.release()}, load {os.getloadavg()[0]:.1f}"
    )


def timed(command: Sequence[str], *, cwd: Path | None = None) -> Run:
    """Runs a command to its end and discards its output. Nothing else may run meanwhile: the CPU
    seconds are those of all children that ended meanwhile."""
    usage_before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    process = subprocess.run(
        command, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
    )
    wall = time.perf_counter() - start
    usage_after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = (
        usage_after.ru_utime + usage_after.ru_stime - usage_before.ru_utime - usage_before.ru_stime
    )
    return Run(process.returncode, wall, cpu)


def spread(values: Sequence[float], unit: str, scale: float = 1.0, digits: int = 2) -> str:
    """`median unit [least … most]`."""
    median, low, high = (
        f"{scale * value:.{digits}f}"
        for value in (statistics.median(values), min(values), max(values))
    )
    return f"{median} {unit} [{low} … {high}]"
