"""Reports missing workers: TensorFlow waits for them forever, does not name them, and lets no
Python thread run meanwhile. So another process checks which workers answer.

    python -m mgpu_trainers.tensorflow.arrival NAME SECONDS     (and TF_CONFIG)
"""

import faulthandler
import os
import select
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from mgpu_trainers import cluster
from mgpu_trainers.cluster import Cluster

LONGEST = 600.0
"""Default seconds in which all workers must arrive: they may be started by hand, one host after the
other."""
KNOCK, GRACE = 2.0, 4.0
"""Seconds for an address to answer, and until the process ends that waited."""
MOST = 8


@contextmanager
def deadline(name: str, seconds: float) -> Iterator[None]:
    """Ends this process with exit code 1 and one sentence where what is done takes longer."""
    command = [sys.executable, "-m", __name__, name, str(seconds)]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE) as watcher,
        open(os.devnull, "w") as nowhere,
    ):
        # The only clock of Python that needs no turn of its interpreter.
        faulthandler.dump_traceback_later(seconds + GRACE, exit=True, file=nowhere)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
            assert watcher.stdin
            watcher.stdin.close()


def describe_absent(tf_cluster: Cluster, seconds: float, answers: Callable[[str], bool]) -> str:
    """The tasks that did not join within `seconds`, as the end of a sentence. `answers`: whether an
    address accepts connections."""
    places = [(task, tf_cluster.addresses[task.role][task.index]) for task in tf_cluster.tasks()]
    with ThreadPoolExecutor(len(places)) as pool:
        reachable = list(pool.map(answers, [address for _, address in places]))
    absent = [
        f"{task} ({address})"
        for (task, address), is_reachable in zip(places, reachable, strict=True)
        if not is_reachable
    ]
    if not absent:
        return f"all workers answer, but they did not meet within {seconds:g} s"
    rest = f" and {len(absent) - MOST} more" if len(absent) > MOST else ""
    return f"{', '.join(absent[:MOST])}{rest} did not come within {seconds:g} s"


def answers(address: str) -> bool:
    """Whether a process listens at the address."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), KNOCK).close()
    except (OSError, ValueError):
        return False
    return True


def main() -> None:
    name, seconds = sys.argv[1], float(sys.argv[2])
    tf_cluster, _ = cluster.read_own_task(name)
    # Standard input is readable when all have met, or when the process that waits has ended.
    readable, _, _ = select.select([sys.stdin], [], [], seconds)
    if not readable:
        sys.exit(f"{name}: {describe_absent(tf_cluster, seconds, answers)}")


if __name__ == "__main__":
    main()
