"""The processes of a TensorFlow cluster: their TF_CONFIG, and the folder each works in.

Graphs that run on a worker come from the chief and hold no Python; they can read a file in the
worker's folder. Imports no framework.
"""

import json
import os
import socket
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VARIABLE = "TF_CONFIG"
FOLDER = "MGPU_DOCTOR_CLUSTER"
"""Environment variable: the folder that holds one folder for each process of a launcher."""
INDEX = "index"
"""File in a process's folder, which graphs that the chief sends can read."""
PROCESS = "pid"


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
        """The TF_CONFIG of a task."""
        roles = {role: list(addresses) for role, addresses in self.addresses.items()}
        return json.dumps({"cluster": roles, "task": {"type": task.role, "index": task.index}})

    def place(self, task: Task) -> int:
        """The task's index, from 0, among those of its role on its host."""
        hosts = [address.rpartition(":")[0] for address in self.addresses[task.role]]
        return hosts[: task.index].count(hosts[task.index])


def local_cluster(workers: int, servers: int) -> Cluster:
    """On free ports of this machine; with parameter servers there is a chief, too."""
    roles = {"chief": 1 if servers else 0, "worker": workers, "ps": servers}
    with ExitStack() as sockets:  # all at once, so that no port is given twice

        def address() -> str:
            reserved = sockets.enter_context(socket.socket())
            reserved.bind(("127.0.0.1", 0))
            return f"127.0.0.1:{reserved.getsockname()[1]}"

        return Cluster(
            {role: tuple(address() for _ in range(count)) for role, count in roles.items() if count}
        )


def count_workers() -> int | None:
    """The number of workers in TF_CONFIG; None if it is missing."""
    try:
        return len(json.loads(os.environ[VARIABLE])["cluster"]["worker"])
    except (KeyError, ValueError, TypeError):
        return None


def read_own_task(name: str) -> tuple[Cluster, Task]:
    """The cluster and this process's task; ends the process if TF_CONFIG is unusable."""
    try:
        config: Any = json.loads(os.environ[VARIABLE])
        addresses = {
            role: tuple(map(str, addresses_of_role))
            for role, addresses_of_role in config["cluster"].items()
        }
        task = Task(str(config["task"]["type"]), int(config["task"]["index"]))
        addresses[task.role][task.index]
    except KeyError as missing:
        if missing.args == (VARIABLE,):
            sys.exit(f"{name}: start it with `mgpu-doctor train {name}`, or set {VARIABLE}")
        sys.exit(f"{name}: {VARIABLE} does not say {missing}")
    except (ValueError, TypeError, AttributeError, IndexError):
        sys.exit(f"{name}: {VARIABLE} is not understood: {os.environ[VARIABLE][:200]!r}")
    return Cluster(addresses), task


def register_process(task: Task) -> None:
    """Makes the process's folder and changes to it."""
    base = os.environ.get(FOLDER) or tempfile.mkdtemp()
    folder = _folder_of(base, task)
    folder.mkdir()
    (folder / INDEX).write_text(str(task.index))
    (folder / PROCESS).write_text(str(os.getpid()))
    os.chdir(folder)


def process_id(task: Task) -> int | None:
    """The pid of a task that our launcher started on this machine; None: not known."""
    base = os.environ.get(FOLDER)
    file = _folder_of(base, task) / PROCESS if base else None
    return int(file.read_text()) if file and file.exists() else None


def _folder_of(base: str, task: Task) -> Path:
    return Path(base) / f"{task.role}-{task.index}"
