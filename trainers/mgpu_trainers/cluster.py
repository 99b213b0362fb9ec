"""Who belongs to a cluster of TensorFlow: what TF_CONFIG says to each process."""

import json
import os
import socket
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

VARIABLE = "TF_CONFIG"


@dataclass(frozen=True, slots=True)
class Task:
    """One process. `role`: chief, worker or ps; index: among those of its role, the first is 0."""

    role: str
    index: int

    def __str__(self) -> str:
        if self.role == "chief":
            return "the chief"
        return f"{'parameter server' if self.role == 'ps' else self.role} {self.index}"


@dataclass(frozen=True, slots=True)
class Cluster:
    """`addresses`: of each role, HOST:PORT in the order of their indices."""

    addresses: Mapping[str, tuple[str, ...]]

    def tasks(self) -> list[Task]:
        return [
            Task(role, index)
            for role, addresses in self.addresses.items()
            for index in range(len(addresses))
        ]

    def config(self, task: Task) -> str:
        """What TF_CONFIG is for that task."""
        whole = {role: list(addresses) for role, addresses in self.addresses.items()}
        return json.dumps({"cluster": whole, "task": {"type": task.role, "index": task.index}})

    def place(self, task: Task) -> int:
        """Which one the task is among those of its role on its host; the first is 0."""
        hosts = [address.rpartition(":")[0] for address in self.addresses[task.role]]
        return hosts[: task.index].count(hosts[task.index])


def local(workers: int, servers: int) -> Cluster:
    """On free ports of this machine; with parameter servers there is a chief, too."""
    roles = {"chief": 1 if servers else 0, "worker": workers, "ps": servers}
    with ExitStack() as held:  # all at once, so that no port is given twice

        def address() -> str:
            taken = held.enter_context(socket.socket())
            taken.bind(("127.0.0.1", 0))
            return f"127.0.0.1:{taken.getsockname()[1]}"

        return Cluster(
            {role: tuple(address() for _ in range(count)) for role, count in roles.items() if count}
        )


def workers() -> int | None:
    """How many there are, as far as TF_CONFIG says so."""
    try:
        return len(json.loads(os.environ[VARIABLE])["cluster"]["worker"])
    except (KeyError, ValueError, TypeError):
        return None


def mine(name: str) -> tuple[Cluster, Task]:
    """Which task this process is; ends the process with one sentence where nothing says so."""
    try:
        said: Any = json.loads(os.environ[VARIABLE])
        addresses = {role: tuple(map(str, each)) for role, each in said["cluster"].items()}
        task = Task(str(said["task"]["type"]), int(said["task"]["index"]))
        addresses[task.role][task.index]
    except KeyError as missing:
        if missing.args == (VARIABLE,):
            sys.exit(f"{name}: start it with `mgpu-doctor train {name}`, or set {VARIABLE}")
        sys.exit(f"{name}: {VARIABLE} does not say {missing}")
    except (ValueError, TypeError, AttributeError, IndexError):
        sys.exit(f"{name}: {VARIABLE} is not understood: {os.environ[VARIABLE][:200]!r}")
    return Cluster(addresses), task
