"""How late and how dear records of other hosts are: `python -m benchmarks.fleet_latency`.

Each node is a namespace of this machine with a name and processes of its own (needs root). Its
ranks only record steps at a fixed rate; a real agent runs there below `nsenter` instead of ssh, so
what ssh costs is not included. The latency is the time from a record to its decoded copy in the
reader. Bytes are those of the frames. A node by itself: `--nodes 1 --ranks 8 --rate 1 --every 1`.

With `--screen`, `mgpu-doctor top --hosts` runs on a pseudo-terminal of 200 x 60, with an `ssh` that
calls `nsenter`, and `--interval` is `--every`. The latency is the time from the first record of a
step until the terminal has the bytes that show this step, or a later one, as the job's newest.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import mgpu_probes
import numpy as np
from mgpu_probes.inprocess.layout import BOX_SUFFIX
from mgpu_probes.outside.node.channel_frames import RawFrame

from benchmarks.screen_meter import Screen, cpu_of, first_ends, latencies
from benchmarks.support import DOCTOR, machine
from mgpu_doctor.cluster.agent_messages import NewRecords, Tick, parse_message
from mgpu_doctor.cluster.host_channel import Link
from mgpu_doctor.cluster.host_fleet import Fleet
from mgpu_doctor.cluster.host_mirror import HostMirror
from mgpu_doctor.recording.records import STEP_DTYPE
from tests.support.node_ranks import ShellEngine

NAMESPACES = ("--uts", "--pid", "--mount")
RANK = """\
import os, sys, time
sys.path.insert(0, sys.argv[1])
from math import nan
from mgpu_probes.inprocess.blackbox import Writer
rank, world, period = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), float(sys.argv[3])
writer = Writer.open(sys.argv[2], rank=rank, local_rank=0, world_size=world)
writer.birth({"framework": "torch", "launcher": "environment"})
writer.state(1)
phases = [0.01, nan, 0.02, 0.03, 0.01, nan, 0.01, nan, nan, nan]
due, number = time.monotonic() + period * rank / world, 0
while True:
    time.sleep(max(0.0, due - time.monotonic()))
    end = time.monotonic_ns()
    writer.step(end, round(period * 1e9), number, 0, phases, 8, 0, 1.0, 0.0, number + 1, 1, 1)
    due, number = due + period, number + 1
"""
NODE = """\
import os, subprocess, sys
os.system(f"hostname {sys.argv[1]}")
first, ranks, world = map(int, sys.argv[2:5])
for number in range(ranks):
    facts = {"RANK": first + number, "LOCAL_RANK": number, "WORLD_SIZE": world,
             "LOCAL_WORLD_SIZE": ranks, "MASTER_ADDR": "node0", "MASTER_PORT": 29500}
    environment = os.environ | {key: str(value) for key, value in facts.items()}
    subprocess.Popen([sys.executable, "-S", "-c", *sys.argv[5:]], env=environment)
print("ready", flush=True)
sys.stdin.read()
"""


@dataclass
class Meter:
    """What the frames of each node said so far."""

    latencies: list[float] = field(default_factory=list)
    """Seconds, of each record."""
    sizes: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Node -> bytes."""
    cpu: dict[str, float] = field(default_factory=dict)
    """Node -> processor seconds of its agent."""

    def take(self, node: str, frame: RawFrame) -> None:
        self.sizes[node] += len(frame.head) + len(frame.body) + 6
        match parse_message(frame):
            case Tick(cpu=cpu):
                self.cpu[node] = cpu
            case NewRecords(ring="steps"):
                ends = np.frombuffer(frame.body, STEP_DTYPE)["end_ns"]
                self.latencies += ((time.monotonic_ns() - ends) / 1e9).tolist()


@contextmanager
def node(name: str, first: int, ranks: int, world: int, rank: tuple[str, ...]) -> Iterator[int]:
    """A namespace with ranks; the pid of a process in it."""
    numbers = (str(first), str(ranks), str(world))
    command = ("unshare", *NAMESPACES, "--fork", "--mount-proc", "--kill-child")
    inside = (sys.executable, "-S", "-c", NODE, name, *numbers, *rank)
    with subprocess.Popen(
        (*command, *inside), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"ready\n"
            yield children(process.pid)[0]
        finally:
            process.kill()


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def own_memory(pid: int) -> float:
    """Megabytes of a process, with its share of what several processes have mapped."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) / 1e3 for line in lines if line.startswith("Pss:"))


def measure(meter: Meter, fleet: Fleet, seconds: float) -> None:
    """Polls for some time and prints what it cost."""
    meter.latencies.clear()
    cpu, sizes = dict(meter.cpu), dict(meter.sizes)
    began, spent = time.monotonic(), time.process_time()
    while time.monotonic() - began < seconds:
        fleet.poll(0.1)
    passed = time.monotonic() - began
    reader = (time.process_time() - spent) / passed
    agents = [children(command.child.pid)[0] for command in fleet._commands if command.child]
    late = np.percentile(meter.latencies, (50, 99)) * 1000
    print(
        f"{len(meter.latencies) / passed:.0f} records per second, {late[0]:.0f} ms p50, "
        f"{late[1]:.0f} ms p99, at most {max(meter.latencies) * 1000:.0f} ms"
    )
    for name, before in cpu.items():
        print(
            f"{name}: {(meter.cpu[name] - before) / passed:.2%} of a core, "
            f"{(meter.sizes[name] - sizes[name]) / passed / 1e3:.1f} kB/s"
        )
    print(f"agents: {', '.join(f'{own_memory(pid):.1f}' for pid in agents)} MB")
    print(f"reader: {reader:.1%} of a core, {own_memory(os.getpid()):.0f} MB; the meter included")
    print(f"{sum(state.lost for state in fleet.states())} records lost")


SSH = """\
#!/bin/sh
while [ "$1" != -- ]; do shift; done
case $2 in
{cases}
esac
exec nsenter --target=$pid {namespaces} /bin/sh -c "$3"
"""


def measure_screen(
    pids: Mapping[str, int], folder: Path, every: float, seconds: float, settle: float
) -> None:
    """Watches the screen for some time and prints how late it was and what it cost."""
    cases = "\n".join(f"{name}) pid={pid} ;;" for name, pid in pids.items())
    ssh = folder / "bin/ssh"
    ssh.parent.mkdir()
    ssh.write_text(SSH.format(cases=cases, namespaces=" ".join(NAMESPACES)))
    ssh.chmod(0o700)
    environment = {
        **os.environ,
        "PATH": f"{ssh.parent}:{os.environ['PATH']}",
        "TERM": "xterm-256color",
        "COLORTERM": "truecolor",
    }
    command = [*DOCTOR, "top", "--hosts", ",".join(pids), "--interval", f"{every:g}"]
    with Screen(command, environment) as screen:
        time.sleep(settle)
        begin, sent = time.monotonic_ns(), screen.sent
        measured = {"top": screen.pid, "its examiner": screen.examiner}
        spent = {name: cpu_of(pid) for name, pid in measured.items()}
        memory: dict[str, list[float]] = {name: [] for name in measured}
        while time.monotonic_ns() - begin < seconds * 1e9:
            time.sleep(1)
            for name, pid in measured.items():
                memory[name] += [] if pid is None else [own_memory(pid)]
        assert screen.examiner == measured["its examiner"], "it was started again"
        end, size = time.monotonic_ns(), screen.sent - sent
        cpu = {name: cpu_of(pid) - spent[name] for name, pid in measured.items()}
        time.sleep(settle)  # what was recorded at the end is shown some time later
    ends = first_ends(path for name in pids for path in (folder / name).glob(f"*{BOX_SUFFIX}"))
    late = latencies(ends, screen.shown, begin, end)
    updates = sum(begin <= at < end for at, _ in screen.shown)
    passed = (end - begin) / 1e9
    if not len(late):
        raise SystemExit("the screen never showed a step")
    p50, p99 = np.percentile(late, (50, 99)) * 1000
    print(
        f"record to screen: {len(late)} steps, {p50:.0f} ms p50, {p99:.0f} ms p99, at most "
        f"{late.max() * 1000:.0f} ms; {updates / passed:.1f} updates of the step per second"
    )
    for name, sizes in memory.items():
        most = max(sizes, default=0.0)
        print(
            f"{name}: {cpu[name] / passed:.1%} of a core, {most:.0f} MB at most (PSS, each second)"
        )
    print(f"{size / passed / 1e3:.1f} kB/s to the terminal")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=64, help="on each node")
    parser.add_argument("--rate", type=float, default=10.0, help="steps per second of a rank")
    parser.add_argument("--every", type=float, default=0.1, help="seconds between polls")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--screen", action="store_true", help="measure until it is on the terminal")
    parser.add_argument("--settle", type=float, default=30.0, help="seconds that do not count")
    options = parser.parse_args()
    names = [f"node{number}" for number in range(options.nodes)]
    meter, receive = Meter(), HostMirror.receive

    def metered(mirror: HostMirror, frame: RawFrame) -> None:
        receive(mirror, frame)
        meter.take(mirror.hello.host if mirror.hello else "", frame)

    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir="/var/tmp"))
        os.environ["MGPU_DOCTOR_HOME"] = folder
        stack.enter_context(patch.object(HostMirror, "receive", metered))
        world = options.nodes * options.ranks
        shells: dict[str, Sequence[str]] = {}
        pids: dict[str, int] = {}
        probes = str(Path(mgpu_probes.__file__).parents[1])
        for number, name in enumerate(names):
            rank = (RANK, probes, f"{folder}/{name}", str(1 / options.rate))
            pid = stack.enter_context(
                node(name, number * options.ranks, options.ranks, world, rank)
            )
            pids[name] = pid
            shells[name] = ("nsenter", f"--target={pid}", *NAMESPACES, "/bin/sh", "-c")
        time.sleep(5 + world / 20)  # until all of them record
        if options.screen:
            print(machine(), flush=True)
            measure_screen(pids, Path(folder), options.every, options.seconds, options.settle)
            return
        fleet = stack.enter_context(Fleet(names, Namespaces(shells), options.every))
        fleet.wait_until_read(60)
        print(machine())
        assert all(state.link is Link.LIVE for state in fleet.states()), fleet.states()
        measure(meter, fleet, options.seconds)


class Namespaces(ShellEngine):
    """Reaches an agent in a namespace of this machine."""

    def command(self, host: str, remote: str) -> list[str]:
        return [*self._hosts[host], remote]


if __name__ == "__main__":
    main()
