"""What the live screen costs, compared with nvitop: CPU, memory, time to first frame, `--once`.

    python -m benchmarks.top_cost [--seconds 30] [--runs 3] [--interval 1] [--nvitop PATH]

Everything is drawn on a pseudo-terminal of 160 x 50. The GPUs are those of the pretend NVML library
(`tests/fakenvml`), the job is one that only writes black boxes. nvitop 1.7.2 is installed into a
temporary virtual environment unless `--nvitop` names its executable. CPU seconds are those of
the process, user and system together.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import math
import os
import pty
import select
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.support import ROOT, Run, machine, spread, timed
from mgpu_doctor.recording.home import runs
from tests.fakenvml.fakenvml import build
from tests.fakenvml.fakenvml import machine as pretend

ROWS, COLUMNS = 50, 160
SETTLE = 6.0
"""Seconds after the first frame that do not count: what is done once is no running cost."""
LONGEST_START = 60.0
STARTS = 12
"""Of each, in turn: a first frame is too short a time to be compared otherwise."""
PROCESSES = 16
PEER = "nvitop==1.7.2"
DOCTOR = str(Path(sys.executable).with_name("mgpu-doctor"))
"""As users start it."""
INHERITED = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""What is started has its modules compiled, as after an installation."""
TICKS = os.sysconf("SC_CLK_TCK")
BARE = (
    sys.executable,
    "-c",
    "from textual.app import App\nfrom textual.widgets import Footer, Static\n"
    "class Bare(App):\n"
    "    def compose(self):\n        yield Static('a bare application')\n        yield Footer()\n"
    "Bare().run()",
)
FIRST = {b"bare application": 1, b"Ranks": 1, b"No GPU": 1, b"80GB HBM3": 8, b"NVITOP": 1}
"""A frame is complete when one of these was drawn this many times: eight rows of GPUs, where there
are GPUs."""


@dataclass(frozen=True)
class Cost:
    """Shares of a core, bytes and seconds."""

    cpu: float
    resident: int
    first_frame: float
    first_cpu: float
    """Processor time until the first frame."""


def drawn(
    command: Sequence[str],
    environment: Mapping[str, str],
    seconds: float,
    settle: float = SETTLE,
) -> Cost:
    """Runs a full-screen command on a pseudo-terminal and watches what it uses after settling."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    began = time.perf_counter()
    process = subprocess.Popen(
        command,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**INHERITED, "TERM": "xterm-256color", "COLORTERM": "truecolor", **environment},
        start_new_session=True,
        cwd=ROOT,
    )
    first: list[tuple[float, float]] = []

    def drain() -> None:
        text = b""
        while process.poll() is None:
            if select.select([master], [], [], 0.1)[0]:
                data = os.read(master, 1 << 16)
                text = text + data if not first else b""
                if any(text.count(word) >= rows for word, rows in FIRST.items()):
                    wall = time.perf_counter() - began
                    first.append((wall, time.clock_gettime(_clock_of(process.pid))))

    reader = threading.Thread(target=drain, daemon=True)
    reader.start()
    while not first and time.perf_counter() - began < LONGEST_START:
        time.sleep(0.1)
    time.sleep(settle)
    cpu_before, start = _cpu_seconds(process.pid), time.perf_counter()
    time.sleep(seconds)
    used, passed = _cpu_seconds(process.pid) - cpu_before, time.perf_counter() - start
    resident = _resident(process.pid)
    process.send_signal(signal.SIGTERM)
    process.wait(10)
    reader.join()
    os.close(master)
    os.close(slave)
    return Cost(used / passed, resident, *(first[0] if first else (math.nan, math.nan)))


def _clock_of(pid: int) -> int:
    """The identifier of the clock of a process's processor time, as `clock_getcpuclockid` makes."""
    return ~pid << 3 | 2


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def report(name: str, costs: Sequence[Cost]) -> Cost:
    """The medians, which are printed with their spread."""
    cpu = spread([cost.cpu for cost in costs], "% of a core", 100)
    first = spread([cost.first_frame for cost in costs], "s")
    print(f"{name:28} {cpu:34} first frame {first:26} {costs[0].resident >> 20} MiB", flush=True)
    middle = statistics.median
    return Cost(
        middle(cost.cpu for cost in costs),
        costs[0].resident,
        middle(cost.first_frame for cost in costs),
        middle(cost.first_cpu for cost in costs),
    )


def starts(*commands: tuple[Sequence[str], Mapping[str, str]]) -> list[tuple[float, float]]:
    """Median seconds until the first frame of each, begun in turn, and of processor time."""
    rounds = [
        [drawn(command, environment, 0.1, settle=0.1) for command, environment in commands]
        for _ in range(STARTS)
    ]
    middle = statistics.median
    return [
        (middle(cost.first_frame for cost in costs), middle(cost.first_cpu for cost in costs))
        for costs in zip(*rounds, strict=True)
    ]


def measure_once(name: str, command: Sequence[str], times: int) -> float:
    """Median CPU seconds of a command that ends by itself."""
    runs: list[Run] = [timed(command) for _ in range(times)]
    wall, cpu = spread([run.wall for run in runs], "s"), spread([run.cpu for run in runs], "s")
    print(f"{name:28} {cpu} CPU, {wall} wall", flush=True)
    return statistics.median(run.cpu for run in runs)


def print_verdict(goal: str, measured: float, most: float, unit: str) -> None:
    word = "met" if measured <= most else "MISSED"
    print(f"{word:7} {goal}: {measured:.2f} {unit}, at most {most:.2f} {unit}", flush=True)


@contextlib.contextmanager
def gpus(folder: Path, count: int) -> Iterator[dict[str, str]]:
    """Environment variables with which a process sees `count` pretend GPUs, all busy."""
    sleepers = [subprocess.Popen(["sleep", "infinity"]) for _ in range(PROCESSES)]
    library = folder / f"nvml{count}"
    build(library, optimise=2)
    box = pretend("busy", gpus=count, pids=[sleeper.pid for sleeper in sleepers])
    box.write(str(library / "state"))
    try:
        yield {"LD_LIBRARY_PATH": str(library), "FAKENVML_STATE": str(library / "state")}
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()


@contextlib.contextmanager
def job(folder: Path, ranks: int, args: argparse.Namespace) -> Iterator[dict[str, str]]:
    """A live job in a home of its own. Many ranks step slowly, so as not to starve what is
    measured: the screen reads what is there, however often it changes."""
    environment = {"MGPU_DOCTOR_HOME": str(folder / f"home{ranks}")}
    seconds = args.runs * (args.seconds + SETTLE + 15) + 60
    rate = min(15.0, 60.0 / ranks)
    command = [sys.executable, "-m", "benchmarks.pretend_job", str(runs(environment) / "job")]
    command += ["--ranks", str(ranks), "--seconds", str(seconds), "--steps-per-second", str(rate)]
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    time.sleep(3 + ranks / 30)
    try:
        yield environment
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def peer(folder: Path, program: Path | None) -> Path:
    if program is not None:
        return program
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", PEER]
    subprocess.run(pip, check=True)
    return folder / "bin/nvitop"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="watched, each run")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--interval", default="1")
    parser.add_argument("--nvitop", type=Path, help="its executable, where it is installed")
    args = parser.parse_args()
    print(f"benchmarks.top_cost on {machine()}; every {args.interval} s", flush=True)
    top = (DOCTOR, "top", "--interval", args.interval)
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        empty = {"MGPU_DOCTOR_HOME": str(home / "empty")}
        nvitop = str(peer(home / "peer", args.nvitop))

        def measure(name: str, command: Sequence[str], environment: Mapping[str, str]) -> Cost:
            return report(
                name, [drawn(command, environment, args.seconds) for _ in range(args.runs)]
            )

        measure("bare Textual app", BARE, {})
        measure("top, no job, no GPU", top, empty)
        with gpus(home, 8) as eight:
            peer_cost = measure(
                "nvitop, 8 GPUs", (nvitop, "--monitor", "full", "--interval", args.interval), eight
            )
            top_cost = measure("top, 8 GPUs", top, {**empty, **eight})
            bare, first = starts((BARE, {}), (top, {**empty, **eight}))
            for name, (seconds, used) in (("bare", bare), ("top", first)):
                print(f"{STARTS} starts in turn, {name}: {seconds:.3f} s, {used:.3f} CPU-s")
            os.environ.update({**empty, **eight})
            their_once = measure_once("nvitop --once, 8 GPUs", (nvitop, "--once"), 5 * args.runs)
            our_once = measure_once("top --once, 8 GPUs", (DOCTOR, "top", "--once"), 5 * args.runs)
        with job(home, 4, args) as few:
            measure("top, 4 ranks, no GPU", top, few)
        with gpus(home, 64) as many_gpus, job(home, 256, args) as ranks:
            large = measure("top, 64 GPUs, 256 ranks", top, {**many_gpus, **ranks})
    print_verdict(
        "CPU, compared with nvitop's, 8 GPUs",
        100 * top_cost.cpu,
        100 * peer_cost.cpu,
        "% of a core",
    )
    print_verdict("first frame", first[0], 1.3 * bare[0], "s")
    print_verdict("--once, compared with nvitop's, 8 GPUs", our_once, their_once, "CPU-s")
    print_verdict("64 GPUs, 256 ranks", 100 * large.cpu, 2.0, "% of a core")


if __name__ == "__main__":
    main()
