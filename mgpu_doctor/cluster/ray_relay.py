"""Connects standard input and output to a command on a node of a Ray cluster: a program of its own.

    python -m mgpu_doctor.cluster.ray_relay ADDRESS                   prints the nodes as JSON
    python -m mgpu_doctor.cluster.ray_relay ADDRESS NODE_ID COMMAND   runs a shell command there

The doctor's own process never imports Ray. An actor on the node starts the command; it takes no CPU
of the cluster's budget, and ends with this program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

READ = 1 << 16
MOST_ERROR = 4096
HIDDEN_BY = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""Older versions of Ray set these to nothing in an actor that asks for no GPU (2.60 does not)."""


class Relay:
    """The actor: a command on its node. Its methods may be called at once."""

    def __init__(self, command: str) -> None:
        self._child = subprocess.Popen(
            ("/bin/sh", "-c", command),
            env=_show_gpus(os.environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )

    def write(self, data: bytes) -> None:
        """Writes to the command; no bytes close its input. A command that has ended takes none."""
        assert self._child.stdin is not None
        with suppress(OSError, ValueError):
            if not data:
                self._child.stdin.close()
            while data:
                data = data[self._child.stdin.write(data) or 0 :]

    def read(self) -> bytes:
        """Waits for what the command prints; no bytes: it prints no more."""
        assert self._child.stdout is not None
        return os.read(self._child.stdout.fileno(), READ)

    def end(self) -> tuple[int, bytes]:
        """Its exit code and the end of what it printed on standard error."""
        assert self._child.stderr is not None
        return self._child.wait(), self._child.stderr.read()[-MOST_ERROR:]


def _show_gpus(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without what hides all GPUs: `preflight` tests them."""
    return {name: value for name, value in environment.items() if value or name not in HIDDEN_BY}


def main() -> int:
    address, *rest = sys.argv[1:]
    out = os.dup(1)
    os.dup2(2, 1)  # what Ray prints is no part of the stream
    try:
        import ray
    except ModuleNotFoundError:
        print(f"there is no Ray in {sys.executable}", file=sys.stderr)
        return 1
    ray.init(address, log_to_driver=False, logging_level="error", namespace="mgpu-doctor")
    if rest:
        node, command = rest
        return _relay(ray, node, command, out)
    nodes = [(each["NodeID"], each["NodeName"]) for each in ray.nodes() if each["Alive"]]
    os.write(out, json.dumps(nodes).encode())
    return 0


def _relay(ray: Any, node: str, command: str, out: int) -> int:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    place = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
    options = {"num_cpus": 0, "max_concurrency": 3, "scheduling_strategy": place}
    actor = ray.remote(Relay).options(**options).remote(command)
    threading.Thread(target=_send, args=(ray, actor), daemon=True).start()
    while data := ray.get(actor.read.remote()):
        while data:
            data = data[os.write(out, data) :]
    code, error = ray.get(actor.end.remote())
    os.write(2, error)
    return int(code) & 0xFF


def _send(ray: Any, actor: Any) -> None:
    """Passes standard input on, in its order; ends this process with it."""
    while data := os.read(0, READ):
        ray.get(actor.write.remote(data))
    ray.get(actor.write.remote(b""))


if __name__ == "__main__":
    sys.exit(main())
