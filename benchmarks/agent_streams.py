"""What the agents on many hosts send, as `srun --label` would print it: one process for all hosts.

    python -m benchmarks.agent_streams NODE,NODE... --ranks 8 --rate 1

It writes one host's black boxes and reads them as an agent does, once per second; each host sends
these frames with ranks, pids, a boot and a name of its own. All hosts send within a second, spread
evenly. `fleet_scale` reads it. Of standard input only its end matters, and questions about the
clock, which each host answers when it sends next.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from math import nan
from pathlib import Path

from mgpu_probes.inprocess import layout
from mgpu_probes.inprocess.blackbox import Writer
from mgpu_probes.outside.host_usage import HostUsage
from mgpu_probes.outside.node.agent_channel import to_lines
from mgpu_probes.outside.node.box_stream import BoxStream
from mgpu_probes.outside.node.channel_frames import MAGIC, FrameSplitter, RawFrame, pack_frame

PID_AT = struct.calcsize("=8sHHI" + "I" * 13 + "4x")
BOOT_AT = PID_AT + struct.calcsize("=IIQqq")
RANK_AT = BOOT_AT + 16
HOST_AT = layout.IDENTITY.size - 64
FIRST_PID = 2000
OWN = {layout.INPUT: 0.002, layout.FORWARD: 0.3, layout.BACKWARD: 0.5, layout.OPTIMIZER: 0.1}
"""Seconds of a step."""


QUESTIONS: list[tuple[float, float, list[str] | None]] = []
"""About the clock: when they were asked, when they came, and for which hosts; None: all."""


class Streams:
    """The streams of these nodes. `ranks`: on each of them; `rate`: steps per second of each rank;
    `before`: steps that each rank has done when the agents arrive."""

    def __init__(
        self, nodes: Sequence[str], ranks: int, rate: float, before: int, folder: Path
    ) -> None:
        self._nodes = nodes
        self._ranks = ranks
        self._rate = rate
        self._writers = [
            Writer.open(folder / str(rank), rank=rank, local_rank=rank, world_size=ranks)
            for rank in range(ranks)
        ]
        for writer in self._writers:
            writer.birth({"framework": "torch", "strategy": "ddp", "device": "cpu"})
            writer.state(layout.RUNNING)
        self._steps = 0
        self._usage = HostUsage(closely=True)
        self.write(before)
        self._boxes = [BoxStream(str(writer.path)) for writer in self._writers]

    def write(self, steps: int) -> None:
        """Records steps on every rank, the last of which ends now."""
        wall = round(1e9 / self._rate)
        end = time.monotonic_ns() - steps * wall
        phases = [OWN.get(phase, nan) / self._rate for phase in range(len(layout.PHASES))]
        phases[layout.WAIT] = (1 - sum(OWN.values())) / self._rate
        for _ in range(steps):
            end += wall
            for writer in self._writers:
                number = self._steps
                writer.step(end, wall, number, 0, phases, 8, 0, nan, 0.0, number + 1, 1, 1)
            self._steps += 1

    def begin(self) -> Iterator[list[bytes]]:
        """Yields the first frames of each node."""
        frames = [[*FrameSplitter().feed(MAGIC + b"".join(box.poll(0)))] for box in self._boxes]
        for node, name in enumerate(self._nodes):
            yield [
                MAGIC,
                pack_frame(
                    "hello", host=name, boot=name, pid=7, python="3", user="me", at=time.time()
                ),
                pack_frame("job", json.dumps(self._job(node)).encode()),
                *(frame for box in range(self._ranks) for frame in self._first(node, box, frames)),
                *self._end(),
            ]

    def news(self) -> Iterator[list[bytes]]:
        """Yields what is new on each node."""
        frames = [[*FrameSplitter().feed(MAGIC + b"".join(box.poll(0)))] for box in self._boxes]
        own = os.uname().nodename
        sample = json.dumps({**self._usage.sample([os.getpid()]), "host": own})
        for node, name in enumerate(self._nodes):
            boxes = range(self._ranks)
            line = sample.replace(json.dumps(own), json.dumps(name)).encode()
            yield [
                *(frame for box in boxes for frame in self._of(node, box, frames[box])),
                pack_frame("host", line, jobs=[0]),
                *self._end(),
            ]

    def _job(self, node: int) -> dict[str, object]:
        return {
            "job": 0,
            "over": False,
            "rendezvous": ["torch", "run-1", "node-a"],
            "launcher": "torchrun",
            "pid": FIRST_PID - 1,
            "world_size": self._ranks * len(self._nodes),
            "command": ["torchrun", "train.py"],
            "ranks": [[node * self._ranks + rank, FIRST_PID + rank] for rank in range(self._ranks)],
            "boxes": self._ranks,
            "refused": [],
        }

    def _first(self, node: int, box: int, frames: list[list[RawFrame]]) -> Iterator[bytes]:
        name = f"{self._nodes[node]}.{FIRST_PID + box}.0"
        facts = {"box": box, "job": 0, "path": f"/r/{name}{layout.BOX_SUFFIX}", "identity": name}
        yield pack_frame("box", self._header(node, box, self._boxes[box].first_header), **facts)
        yield from self._of(node, box, frames[box])

    def _of(self, node: int, box: int, frames: Sequence[RawFrame]) -> Iterator[bytes]:
        """Frames of a box, as it would be on that node."""
        for frame in frames:
            facts = json.loads(frame.head)
            body = frame.body
            if facts["kind"] == "header":
                body = zlib.compress(self._header(node, box, zlib.decompress(body)), 1)
            yield pack_frame(facts.pop("kind"), body, **{**facts, "box": box})

    def _header(self, node: int, box: int, header: bytes) -> bytes:
        changed = bytearray(header)
        struct.pack_into("=II", changed, PID_AT, FIRST_PID + box, FIRST_PID - 1)
        struct.pack_into("=16s", changed, BOOT_AT, self._nodes[node].encode())
        rank = node * self._ranks + box
        struct.pack_into("=iii", changed, RANK_AT, rank, box, self._ranks * len(self._nodes))
        struct.pack_into("=64s", changed, HOST_AT, self._nodes[node].encode())
        return bytes(changed)

    def _end(self) -> tuple[bytes]:
        return (pack_frame("tick", at=time.time(), cpu=0.0),)


def send(streams: Streams, nodes: Sequence[str], every: float, steps: int) -> None:
    """Prints the streams for ever: news of every node each `every` seconds, with `steps` new
    steps."""
    labels = [b"%0*d: " % (len(str(len(nodes))), number) for number in range(len(nodes))]
    for label, name, frames in zip(labels, nodes, streams.begin(), strict=True):
        sys.stdout.buffer.write(label + b"@" + name.encode() + b"\n")
        print_frames(label, frames)
    answered = [0] * len(nodes)
    while True:
        began = time.monotonic()
        streams.write(steps)
        for number, frames in enumerate(streams.news()):
            due = began + every * number / len(nodes)
            time.sleep(max(0.0, due - time.monotonic()))
            new = QUESTIONS[answered[number] :]
            answered[number] += len(new)
            answers = [
                pack_frame("clock", asked=asked, arrived=arrived, at=time.time())
                for asked, arrived, hosts in new
                if hosts is None or nodes[number] in hosts
            ]
            print_frames(labels[number], [*answers, *frames])
        time.sleep(max(0.0, began + every - time.monotonic()))


def print_frames(label: bytes, frames: Sequence[bytes]) -> None:
    """Prints frames as a task's lines; each poll of an agent reaches the pipe at once."""
    lines = to_lines(b"".join(frames)).splitlines()
    sys.stdout.buffer.write(b"".join(label + line + b"\n" for line in lines))
    sys.stdout.buffer.flush()


def listen() -> None:
    """Keeps questions; ends the process with its input."""
    for line in sys.stdin.buffer:  # the first lines are the agent's program
        if line.startswith(b"{") and b'"clock"' in line:
            request = json.loads(line)
            QUESTIONS.append((request["clock"], time.time(), request.get("agent")))
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("nodes", type=lambda text: text.split(","))
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--rate", type=float, default=1.0)
    parser.add_argument("--before", type=int, default=100)
    parser.add_argument("--every", type=float, default=1.0)
    arguments = parser.parse_args()
    threading.Thread(target=listen, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        streams = Streams(
            arguments.nodes, arguments.ranks, arguments.rate, arguments.before, Path(folder)
        )
        steps = max(1, round(arguments.rate * arguments.every))
        send(streams, arguments.nodes, arguments.every, steps)


if __name__ == "__main__":
    main()
