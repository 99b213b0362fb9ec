"""Profiler traces, compared with HolisticTraceAnalysis 0.5 on the same files: time, memory, sums.

    python -m venv HTA && HTA/bin/pip install HolisticTraceAnalysis==0.5.0 'pandas<3'
    python -m benchmarks.traces --peer HTA/bin/python [--folder TRACES]

Without --folder, traces of 8 GPU ranks are simulated in Kineto's layout (about 60 MB each). Both
read all files and compute idle, compute and non-compute time, overlap and the reasons for idle time
of every rank. Memory is the most that the process and its children held at once.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

from tests.support.kineto import Job, written

LARGE = Job(ranks=8, steps=20, kernels=3000, kernel=20, transfer=2000, buckets=10, slow={5: 1.15})
OURS = """
import json, sys
from pathlib import Path
from mgpu_doctor.analysis.traces.time_split import split
from mgpu_doctor.analysis.traces.trace_summary import tell
from mgpu_doctor.case.profiler_case import case_of_traces
if __name__ == "__main__":
    case = case_of_traces([Path(sys.argv[1])])
    told = tell(case.traces, case.job.world_size)
    rows = [[told.ranks[place], s.idle * 1e6, s.compute * 1e6,
             (s.window - s.idle - s.compute) * 1e6, 100 * (1 - s.exposed / s.communication)]
            for place, s in sorted(told.splits.items())]
    print(json.dumps(rows))
"""
THEIRS = """
import json, logging, sys
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
if __name__ == "__main__":
    seen = TraceAnalysis(trace_dir=sys.argv[1], include_last_profiler_step=True)
    split = seen.get_temporal_breakdown(visualize=False)
    over = seen.get_comm_comp_overlap(visualize=False)
    seen.get_idle_time_breakdown(ranks=sorted(seen.t.traces), visualize=False)
    rows = [[int(r["rank"]), *(float(r[k]) for k in ("idle_time(us)", "compute_time(us)",
             "non_compute_time(us)")), float(o["comp_comm_overlap_pctg"])]
            for (_, r), (_, o) in zip(split.iterrows(), over.iterrows())]
    print(json.dumps(rows))
"""
EXACT = {"HTA_DISABLE_NS_ROUNDING": "1"}
"""HTA else cuts each event to whole microseconds."""
EVERY = 0.1
NAMES = ("rank", "idle µs", "compute µs", "other µs", "overlap %")


def measure_parser(
    python: str, script: str, folder: Path
) -> tuple[float, float, int, list[list[float]]]:
    """Wall seconds, seconds of all cores together, bytes at most, and a row a rank."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "one.py"
        path.write_text(script)
        begun, used = time.perf_counter(), _children_cpu_seconds()
        child = subprocess.Popen(
            [python, str(path), str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | EXACT,
        )
        memory = _MemoryPeak(child.pid)
        summary, _ = child.communicate()
        seconds = time.perf_counter() - begun
        memory.join()
    if child.returncode:
        raise SystemExit(f"{python} failed with {child.returncode}")
    rows: list[list[float]] = json.loads(summary.splitlines()[-1])
    return seconds, _children_cpu_seconds() - used, memory.most, sorted(rows)


def _children_cpu_seconds() -> float:
    """CPU seconds of all children so far: what a busy machine does not lengthen."""
    summary = resource.getrusage(resource.RUSAGE_CHILDREN)
    return summary.ru_utime + summary.ru_stime


class _MemoryPeak(threading.Thread):
    """Samples the memory of a process and its children, shared pages counted once."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._process = psutil.Process(pid)
        self.most = 0
        self.start()

    def run(self) -> None:
        while self._process.is_running() and self._process.status() != psutil.STATUS_ZOMBIE:
            total = 0
            try:
                for process in [self._process, *self._process.children(recursive=True)]:
                    total += process.memory_full_info().pss
            except psutil.Error:
                continue
            self.most = max(self.most, total)
            time.sleep(EVERY)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--peer", help="a Python that has HolisticTraceAnalysis 0.5")
    parser.add_argument("--folder", type=Path, help="traces, one file a rank")
    parser.add_argument("--runs", type=int, default=3)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = chosen.folder or written(Path(place), LARGE)
        size = sum(file.stat().st_size for file in folder.iterdir())
        print(f"{len(os.listdir(folder))} traces, {size / 1e6:.0f} MB; the best of {chosen.runs}")
        tools = {"mgpu-doctor": (sys.executable, OURS)}
        if chosen.peer:
            tools["HTA 0.5.0"] = (chosen.peer, THEIRS)
        sums = {}
        for name, (python, script) in tools.items():
            runs = [measure_parser(python, script, folder) for _ in range(chosen.runs)]
            seconds, used = (min(run[figure] for run in runs) for figure in (0, 1))
            most = max(run[2] for run in runs)
            sums[name] = runs[0][3]
            print(f"{name:12} {seconds:6.2f} s, of the cores {used:6.2f} s, {most >> 20} MiB")
    first, *other_rows = sums.values()
    for rows in other_rows:
        apart = [max(abs(a[k] - b[k]) for a, b in zip(first, rows, strict=True)) for k in range(5)]
        summary = ", ".join(f"{name} {gap:.3g}" for name, gap in zip(NAMES, apart, strict=True))
        print(f"largest difference of any rank: {summary}")


if __name__ == "__main__":
    main()
