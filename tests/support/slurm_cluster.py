"""A Slurm cluster of this machine: real daemons; each node has a name and processes of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

DAEMONS = Path(__file__).parents[1] / "cluster" / "slurm_daemons"


def can_run_daemons() -> bool:
    """Whether this user may start node daemons in namespaces."""
    return os.geteuid() == 0 and shutil.which("unshare") is not None


@contextmanager
def slurm_cluster(folder: Path, *names: str) -> Iterator[dict[str, str]]:
    """The environment in which Slurm's commands are those of a cluster with these nodes. Where no
    Slurm can be had, the test fails with the one sentence that says so."""
    controller, *ports = _free_ports(1 + len(names))
    nodes = [f"{name}:{port}" for name, port in zip(names, ports, strict=True)]
    with (folder / "daemons.log").open("wb") as log:
        daemons = subprocess.Popen(
            [DAEMONS, str(folder), str(controller), *nodes],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )
    assert daemons.stdin is not None
    assert daemons.stdout is not None
    try:
        assert daemons.stdout.readline() == b"ready\n", (folder / "daemons.log").read_text()
        yield {"SLURM_CONF": str(folder / "slurm.conf")}
    finally:
        daemons.stdin.close()
        daemons.wait()
        daemons.stdout.close()


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
