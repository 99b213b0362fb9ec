"""What the live screen costs: CPU, memory, the time to its first frame, and `--once`.

    python -m benchmarks.top_cost [--seconds 20] [--runs 3] [--interval 1]

Drawn on a pseudo-terminal of 160 x 50, beside a bare Textual app on the same machine. The live job
is a pretend one that only writes black boxes; the GPUs are those of the pretend NVML library.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.support import DOCTOR, ROOT, machine, spread, timed
from mgpu_doctor.recording.home import runs
from tests.fakenvml.fakenvml import build
from tests.fakenvml.fakenvml import machine as pretend

ROWS, COLUMNS = 50, 160
SETTLE = 4.0
TICKS = os.sysconf("SC_CLK_TCK")
BARE = (
    sys.executable,
    "-c",
    "from textual.app import App\nfrom textual.widgets import Footer, Static\n"
    "class Bare(App):\n"
    "    def compose(self):\n        yield Static('under observation')\n        yield Footer()\n"
    "Bare().run()",
)


@dataclass(frozen=True)
class Cost:
    """Shares of a core, bytes and seconds."""

    cpu: float
    resident: int
    first_frame: float


def drawn(command: Sequence[str], environment: Mapping[str, str], seconds: float) -> Cost:
    """Runs a full-screen command on a pseudo-terminal and watches what it uses after settling."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    began = time.perf_counter()
    process = subprocess.Popen(
        command,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", **environment},
        start_new_session=True,
        cwd=ROOT,
    )
    first: list[float] = []

    def drain() -> None:
        while process.poll() is None:
            if select.select([master], [], [], 0.1)[0]:
                text = os.read(master, 1 << 16)
                if not first and (b"observation" in text or b"Ranks" in text):
                    first.append(time.perf_counter() - began)

    reader = threading.Thread(target=drain, daemon=True)
    reader.start()
    time.sleep(SETTLE)
    before, start = _cpu_seconds(process.pid), time.perf_counter()
    time.sleep(seconds)
    used, passed = _cpu_seconds(process.pid) - before, time.perf_counter() - start
    resident = _resident(process.pid)
    process.send_signal(signal.SIGTERM)
    process.wait(10)
    reader.join()
    os.close(master)
    os.close(slave)
    return Cost(used / passed, resident, first[0] if first else float("nan"))


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def report(name: str, costs: Sequence[Cost]) -> None:
    cpu = spread([cost.cpu for cost in costs], "% of a core", 100)
    first = spread([cost.first_frame for cost in costs], "s")
    print(f"{name:28} {cpu:34} first frame {first:26} {costs[0].resident >> 20} MiB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="watched, each run")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--interval", default="1")
    parser.add_argument("--ranks", type=int, nargs="*", default=[4, 64])
    parser.add_argument("--gpus", type=int, nargs="*", default=[8, 64])
    args = parser.parse_args()
    print(f"benchmarks.top_cost on {machine()}; every {args.interval} s", flush=True)
    top = (*DOCTOR, "top", "--interval", args.interval)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        empty = {"MGPU_DOCTOR_HOME": str(home / "empty")}

        def measure(name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
            report(name, [drawn(command, environment, args.seconds) for _ in range(args.runs)])

        measure("bare Textual app", BARE, {})
        measure("top, no job, no GPU", top, empty)
        for gpus in args.gpus if shutil.which("cc") else []:
            library = home / f"nvml{gpus}"
            build(library)
            pretend("busy", gpus=gpus).write(str(library / "state"))
            nvml = {"LD_LIBRARY_PATH": str(library), "FAKENVML_STATE": str(library / "state")}
            measure(f"top, {gpus} GPUs", top, {**empty, **nvml})
        for ranks in args.ranks:
            environment = {"MGPU_DOCTOR_HOME": str(home / f"home{ranks}")}
            job = _job(runs(environment) / "job", ranks, args)
            try:
                measure(f"top, job of {ranks} ranks", top, environment)
            finally:
                os.killpg(job.pid, signal.SIGTERM)
                job.wait()
        os.environ.update(empty)
        once = [timed((*DOCTOR, "top", "--once")) for _ in range(5 * args.runs)]
        print(
            f"{'top --once, no job':28} {spread([run.wall for run in once], 's')} wall, "
            f"{spread([run.cpu for run in once], 's')} CPU"
        )


def _job(folder: Path, ranks: int, args: argparse.Namespace) -> subprocess.Popen[bytes]:
    seconds = args.runs * (args.seconds + SETTLE + 15) + 60
    rate = min(15.0, 60.0 / ranks)  # many ranks step slowly, so as not to starve what is measured
    command = [sys.executable, "-m", "benchmarks.pretend_job", str(folder)]
    command += ["--ranks", str(ranks), "--seconds", str(seconds), "--steps-per-second", str(rate)]
    job = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    time.sleep(3 + ranks / 8)
    return job


if __name__ == "__main__":
    main()
