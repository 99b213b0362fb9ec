"""What an agent costs its host and its reader: `python -m benchmarks.host_agent_cost`.

Ranks without a framework record steps at a fixed rate; the agent runs below a shell of this machine
instead of ssh, so what ssh costs is not included. Bytes are those of the frames.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from mgpu_probes.outside.node.channel_frames import RawFrame

from mgpu_doctor.cluster.agent_messages import Tick, parse_message
from mgpu_doctor.cluster.host_fleet import Fleet
from mgpu_doctor.cluster.host_mirror import HostMirror
from tests.support.node_ranks import ShellEngine, node_rank

WRITES_A_SECOND = 2


@dataclass
class Meter:
    """What the frames said so far."""

    size: int = 0
    ticks: list[tuple[float, float, int]] | None = None
    """Of each poll: time, processor seconds of the agent so far, bytes so far."""

    def take(self, frame: RawFrame) -> None:
        self.size += len(frame.head) + len(frame.body) + 6
        message = parse_message(frame)
        if isinstance(message, Tick):
            self.ticks = [*(self.ticks or ()), (message.at, message.cpu, self.size)]


def measure(ranks: int, rate: float, seconds: float, folder: Path) -> None:
    """Prints what one agent and its reader cost with so many ranks of so many steps per second."""
    meter = Meter()
    receive = HostMirror.receive

    def counted(mirror: HostMirror, frame: RawFrame) -> None:
        meter.take(frame)
        receive(mirror, frame)

    with ExitStack() as stack:
        stack.enter_context(patch.object(HostMirror, "receive", counted))
        training = [
            stack.enter_context(node_rank(folder / "boxes", rank, ranks)) for rank in range(ranks)
        ]
        fleet = stack.enter_context(Fleet(["here"], ShellEngine()))
        fleet.wait_until_read(30)
        spent, began = time.process_time(), time.monotonic()
        while (passed := time.monotonic() - began) < seconds:
            for rank in training:
                rank.write(round(rate / WRITES_A_SECOND))
            due = began + passed + 1 / WRITES_A_SECOND
            while (left := due - time.monotonic()) > 0:
                fleet.poll(left)
        reader = (time.process_time() - spent) / seconds
    first, last = (meter.ticks or [])[0], (meter.ticks or [])[-1]
    passed = last[0] - first[0]
    print(f"{ranks} ranks, {rate:g} steps per second, load {os.getloadavg()[0]:.1f}")
    print(f"agent: {first[1]:.2f} s of processor time until the first poll is sent, then ", end="")
    print(
        f"{(last[1] - first[1]) / passed:.2%} of a core and {(last[2] - first[2]) / passed:.0f} B/s"
    )
    print(f"reader: {reader:.2%} of a core")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--rate", type=float, default=2.0, help="steps per second of a rank")
    parser.add_argument("--seconds", type=float, default=30.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MGPU_DOCTOR_HOME"] = folder
        measure(arguments.ranks, arguments.rate, arguments.seconds, Path(folder))


if __name__ == "__main__":
    main()
