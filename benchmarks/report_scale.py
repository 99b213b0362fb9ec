"""The post-mortem of a large job: `python -m benchmarks.report_scale [--ranks 10000 --steps 1000]`.

Makes the recording (benchmarks/fleet_recording.py; some minutes, 1.5 GB, not counted) where
`--recording` names none, reads it once, so that the disk is out of the figures, and runs `diagnose`
and `report` on it as a user would. It prints CPU and wall seconds, because other work on a busy
machine lengthens the latter, and the memory of all processes together, sampled in a run of its own.

Loaded memory and additional memory are printed separately: the analysis may take 300 MB; the number
of records depends on the job. A step takes 128 bytes of its box, and in memory only what differs
from the rank's other steps. Fails if anyone but the slow rank is named.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.fleet_recording import write
from benchmarks.support import DOCTOR, machine

EVERY = 0.03
"""Seconds between two samples of memory."""
ANALYSIS = """
import sys
from pathlib import Path
from benchmarks.fleet_recording import slow_rank
from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.rules.catalogue import catalogue

def held(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))

catalogue()
case = load_recording(Path(sys.argv[1]))
loaded = held("VmRSS:")
Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here on
findings = diagnose(case).findings
slow = sorted({culprit.rank for finding in findings for culprit in finding.culprits})
records = sum(rank.steps.nbytes for rank in case.ranks) / 1e6
print(f"records {records:.0f} MB of the boxes, loaded {loaded:.0f} MB, "
      f"the analysis {held('VmHWM:') - loaded:.0f} MB more")
print(f"ranks named: {slow}")
sys.exit(0 if slow == [slow_rank(len(case.ranks))] else 1)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--ranks", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--recording", type=Path, help="one that fleet_recording made before")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as spare:
        recording = arguments.recording or Path(spare) / "fleet"
        if arguments.recording is None:
            write(recording, arguments.ranks, arguments.steps)
        print(f"{machine()}\n{recording.name}: {_warm(recording) / 1e6:.0f} MB of files")
        page = Path(spare) / "report.html"
        for verb, *options in (("diagnose",), ("report", "-o", str(page))):
            command = [*DOCTOR, verb, str(recording), *options]
            for _ in range(arguments.runs):
                _print_run(verb, command)
            print(f"{verb:>10}: at most {_measure_memory(command):.0f} MB (PSS), in a run more")
        print(f"{page.stat().st_size / 1e6:.2f} MB of HTML")
        subprocess.run([sys.executable, "-c", ANALYSIS, str(recording)], check=True)


def _warm(folder: Path) -> int:
    """Reads every file; bytes they take on the disk."""
    size = 0
    for file in folder.rglob("*"):
        if file.is_file():
            file.read_bytes()
            size += file.stat().st_blocks * 512
    return size


def _print_run(verb: str, command: list[str]) -> None:
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    print(
        f"{verb:>10}: {wall:.1f} s, {used.ru_utime + used.ru_stime:.1f} CPU-s, "
        f"exit code {process.returncode}",
        flush=True,
    )


def _measure_memory(command: list[str]) -> float:
    """The most megabytes that a command and its children have together, each page counted once."""
    started = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    process, most = psutil.Process(started.pid), 0.0
    while started.poll() is None:
        family = [process, *process.children(recursive=True)]
        most = max(most, sum(_proportional(one.pid) for one in family))
        time.sleep(EVERY)
    return most / 1e6


def _proportional(pid: int) -> int:
    """Bytes of a process, with its share of what several processes have; 0: it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


if __name__ == "__main__":
    main()
