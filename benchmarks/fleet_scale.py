"""The reader of a job on very many hosts: `python -m benchmarks.fleet_scale [--hosts 1250]`.

One process sends what the agents on the hosts would send (`agent_streams`), at one update per
second; the real reader takes it in, as it does from a step of Slurm. Prints what the reader costs:
CPU, memory, bytes. Then what a refresh of `top --hosts` costs with that many ranks, beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from math import inf
from pathlib import Path
from unittest.mock import patch

from benchmarks.support import machine
from mgpu_doctor.cluster.agent_command import AgentCommand, Json
from mgpu_doctor.cluster.host_channel import Link
from mgpu_doctor.cluster.host_fleet import Fleet
from mgpu_doctor.live.job_watch import Watch
from tests.support.node_ranks import ShellEngine


class Generator(ShellEngine):
    """Reaches all hosts at once: `agent_streams` plays them."""

    most_alone = 1

    def __init__(self, *options: str) -> None:
        super().__init__()
        self._options = options

    def step_command(self, hosts: Sequence[str], remote: str) -> list[str]:
        del remote
        return [sys.executable, "-m", "benchmarks.agent_streams", ",".join(hosts), *self._options]


def measure(hosts: int, ranks: int, seconds: float, before: int, *, refresh: bool) -> None:
    """Prints what the reader costs in `seconds` after it has read what there was at first."""
    names = [f"node{number:04}" for number in range(hosts)]
    options = f"--ranks={ranks}", f"--before={before}"
    began, spent = time.monotonic(), time.process_time()
    sizes: list[int] = []
    say = AgentCommand._say

    def counted(command: AgentCommand, request: Json) -> None:
        sizes.append(len(json.dumps(request, separators=(",", ":"))) + 1)
        say(command, request)

    with patch.object(AgentCommand, "_say", counted), Fleet(names, Generator(*options)) as fleet:
        fleet.wait_until_read(120)
        links = [state.link for state in fleet.states()]
        print(
            f"{links.count(Link.LIVE)} of {hosts} hosts after {time.monotonic() - began:.1f} s, "
            f"{time.process_time() - spent:.1f} s of processor time, {_resident():.0f} MB"
        )
        print(f"to connect: {sum(sizes) / 1e3:.1f} kB of requests to each host")
        sizes.clear()
        _take_in(fleet, seconds)
        each = sum(sizes) / seconds
        print(f"requests: {each:.0f} bytes per second to each host, {each * hosts / 1e3:.0f} kB/s")
        errors = sorted(state.clock_error or inf for state in fleet.states())
        print(f"clocks: {errors[hosts // 2] * 1e3:.0f} ms median error, {errors[-1] * 1e3:.0f} ms")
        if refresh:
            watch = Watch(fleet.jobs[0].folder, cost=lambda: 0.0)  # it is always due
            for judging in (True, True, False, False):
                thread = threading.Thread(target=_refresh, args=(watch, judging))
                thread.start()
                while thread.is_alive():
                    fleet.poll(0.1)
        lost = sum(state.lost for state in fleet.states())
        troubles = {state.trouble for state in fleet.states()} - {None}
        print(f"{lost} records lost{'; ' if troubles else ''}{' '.join(map(str, troubles))}")


def _take_in(fleet: Fleet, seconds: float) -> None:
    began, spent = time.monotonic(), time.process_time()
    written, steps = _written(), _steps(fleet)
    while (passed := time.monotonic() - began) < seconds:
        fleet.poll(0.1)
    took, arrived = time.process_time() - spent, _steps(fleet) - steps
    print(
        f"reader: {took / passed:.1%} of a core, {_resident():.0f} MB resident; "
        f"{arrived / passed:.0f} records per second, {1e6 * took / arrived:.0f} µs each; "
        f"{(_written() - written) / passed / 1e6:.1f} MB written per second"
    )


def _steps(fleet: Fleet) -> int:
    """Step records that have arrived."""
    boxes = (box for channel in fleet._channels for box in channel.mirror._known.values())
    return sum(box.cursors["steps"] for box in boxes)


def _refresh(watch: Watch, judging: bool) -> None:
    """Reads what the screen needs of the job. `judging`: and diagnoses it."""
    spent, began = time.thread_time(), time.monotonic()
    seen = watch.poll(judging=judging)
    print(
        f"{'diagnosis' if judging else 'refresh'}: "
        f"{time.thread_time() - spent:.1f} s of processor time, "
        f"{time.monotonic() - began:.1f} s; {len(seen.diagnosis.ranks)} ranks, "
        f"{_resident():.0f} MB, "
        f"at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB"
    )


def _resident() -> float:
    """Resident megabytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6


def _written() -> int:
    """Bytes that this process has written into files."""
    line = Path("/proc/self/io").read_text().splitlines()[1]
    return int(line.split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--hosts", type=int, default=1250)
    parser.add_argument("--ranks", type=int, default=8, help="on each host")
    parser.add_argument("--before", type=int, default=100, help="steps before the reader comes")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--refresh", action="store_true", help="measure refreshes of top, too")
    arguments = parser.parse_args()
    print(machine())
    folder = tempfile.mkdtemp(dir="/var/tmp")
    os.environ["MGPU_DOCTOR_HOME"] = folder
    try:
        measure(
            arguments.hosts,
            arguments.ranks,
            arguments.seconds,
            arguments.before,
            refresh=arguments.refresh,
        )
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
