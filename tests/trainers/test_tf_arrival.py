"""Workers that do not join are named, and the wait for them ends."""

import os
import socket
import subprocess
import sys

import pytest
from mgpu_trainers.cluster import Cluster, Task
from mgpu_trainers.tensorflow.arrival import describe_absent

WAITS = """
import ctypes, sys
from mgpu_trainers.tensorflow import arrival
arrival.GRACE = 1.0
with arrival.deadline("tf-multiworker", float(sys.argv[1])):
    ctypes.PyDLL(None).sleep(int(sys.argv[2]))  # no other thread of Python runs meanwhile
print("met")
"""


def waits(seconds: float, takes: int, cluster: Cluster) -> "subprocess.CompletedProcess[str]":
    config = {"TF_CONFIG": cluster.config(Task("worker", 0))}
    command = [sys.executable, "-c", WAITS, str(seconds), str(takes)]
    environment = {**os.environ, **config}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_who_does_not_come_is_named_and_the_process_ends() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as here,
        socket.create_server(("127.0.0.1", 0)) as b,
    ):
        there, absent = here.getsockname()[1], b.getsockname()[1]
        b.close()
        workers = (f"127.0.0.1:{there}", f"127.0.0.1:{absent}")
        ended = waits(1.0, 600, Cluster({"worker": workers}))
    sentence = f"tf-multiworker: worker 1 ({workers[1]}) did not come within 1 s\n"
    assert (ended.returncode, ended.stderr) == (1, sentence)


@pytest.mark.slow
def test_where_all_come_nothing_is_reported() -> None:
    ended = waits(600.0, 0, Cluster({"worker": ("127.0.0.1:1",)}))
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "met\n", "")


def test_many_are_counted() -> None:
    workers = tuple(f"host{number}:2222" for number in range(12))
    said = describe_absent(
        Cluster({"worker": workers}), 60.0, lambda address: address == "host0:2222"
    )
    assert said.startswith("worker 1 (host1:2222), worker 2 (host2:2222), ")
    assert said.endswith("worker 8 (host8:2222) and 3 more did not come within 60 s")
    everybody = describe_absent(Cluster({"worker": workers}), 60.0, lambda _: True)
    assert everybody == "all workers answer, but they did not meet within 60 s"
