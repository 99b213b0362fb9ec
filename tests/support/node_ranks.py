"""Ranks without a framework, and engines that reach an agent without ssh: for tests of hosts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mgpu_doctor.cluster.engine import Trouble

RANK = """\
import sys
from mgpu_probes.inprocess.blackbox import Writer
from tests.support.boxes import write_steps
writer = Writer.open(sys.argv[1], rank=int(sys.argv[2]), local_rank=0, world_size=int(sys.argv[3]))
writer.birth({"framework": "torch", "launcher": "environment"})
writer.state(1)
written = 0
print(writer.path, flush=True)
for line in sys.stdin:
    if line.strip() == "leave":
        writer.leave(0)
        break
    write_steps(writer, int(line), first=written)
    written += int(line)
    print(written, flush=True)
"""


@dataclass
class NodeRank:
    """A process that the local finder takes for a rank, with a box of its own."""

    process: subprocess.Popen[str]
    box: Path

    def write(self, steps: int) -> int:
        """Lets it record steps; how many it has recorded."""
        return int(self.say(str(steps)))

    def say(self, line: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()


@contextmanager
def node_rank(
    boxes: Path, rank: int = 0, world: int = 2, address: str = "node-a", port: int | None = None
) -> Iterator[NodeRank]:
    """A rank of a job on several hosts that writes into `boxes`; it is killed at the end."""
    facts = {
        "RANK": rank,
        "LOCAL_RANK": 0,
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": 1,
        "MASTER_ADDR": address,
        "MASTER_PORT": port or os.getpid(),
    }
    environment = os.environ | {key: str(value) for key, value in facts.items()}
    command = [sys.executable, "-c", RANK, str(boxes), str(rank), str(world)]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield NodeRank(process, Path(process.stdout.readline().strip()))
        finally:
            process.kill()


class ShellEngine:
    """Runs what would run on a host in a shell of this machine. `hosts`: name of a host -> another
    command instead."""

    name = "shell"

    def __init__(self, hosts: dict[str, Sequence[str]] | None = None) -> None:
        self._hosts = hosts or {}

    def command(self, host: str, remote: str) -> list[str]:
        return list(self._hosts.get(host, ("/bin/sh", "-c", remote)))

    def describe_trial(self, host: str) -> str:
        return f"shell {host} true"

    def explain(self, host: str, code: int, text: str) -> Trouble:
        return Trouble(f"{host} ended with {code}: {text.strip()}", "look")
