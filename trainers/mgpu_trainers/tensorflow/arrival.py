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
        subprocess.Popen(command, stdin=subprocess.PIPE) as other,
        open(os.devnull, "w") as nowhere,
    ):
        # The only clock of Python that needs no turn of its interpreter.
        faulthandler.dump_traceback_later(seconds + GRACE, exit=True, file=nowhere)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
            assert other.stdin
            other.stdin.close()


def describe_absent(whole: Cluster, seconds: float, answers: Callable[[str], bool]) -> str:
    """Who was waited for in vain, as the rest of a sentence; `answers`: whether an address does."""
    places = [(task, whole.addresses[task.role][task.index]) for task in whole.tasks()]
    with ThreadPoolExecutor(len(places)) as pool:
        there = list(pool.map(answers, [address for _, address in places]))
    absent = [f"{task} ({at})" for (task, at), here in zip(places, there, strict=True) if not here]
    if not absent:
        return f"all workers answer, but they did not meet within {seconds:g} s"
    more = f" and {len(absent) - MOST} more" if len(absent) > MOST else ""
    return f"{', '.join(absent[:MOST])}{more} did not come within {seconds:g} s"


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
    whole, _ = cluster.read_own_task(name)
    over, _, _ = select.select([sys.stdin], [], [], seconds)  # they have met, or the other ended
    if not over:
        sys.exit(f"{name}: {describe_absent(whole, seconds, answers)}")


if __name__ == "__main__":
    main()
