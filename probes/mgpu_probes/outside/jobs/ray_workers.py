"""Workers of Ray Train: which processes they are, and which job of a Ray cluster they belong to.

They are children of their host's raylet, not of the program that the user started (the driver), and
one raylet serves all jobs of a cluster. Drivers and workers write logs whose names hold the number
of the job: `SESSION/logs/python-core-driver-JOB…_PID.log`, `SESSION/logs/worker-ID-JOB-PID.out`.
The session is that of the cluster, the same on all its hosts (seen with Ray 2.60)."""

from __future__ import annotations

import re
from collections.abc import Container

from mgpu_probes.outside.jobs.process_table import Machine
from mgpu_probes.outside.jobs.rank_environment import Place
from mgpu_probes.outside.jobs.training_evidence import hosts_store, is_in_process_group

RAY = "ray"
_WORKER = "ray::RayTrainWorker"
"""Process title of Ray Train's workers (Ray 2.60)."""
_JOB = r"([0-9a-f]{8})"
_LOG_OF_JOB = re.compile(
    r"/(session_[\w.-]{1,100})/logs/"
    rf"(?:python-core-driver-{_JOB}[0-9a-f]{{1,80}}_\d{{1,10}}\.log"
    rf"|worker-[0-9a-f]{{1,80}}-{_JOB}-\d{{1,10}}\.(?:out|err))$"
)


def find_ray_ranks(machine: Machine, ranks: Container[int]) -> dict[int, Place]:
    """Pid -> place of Ray Train's workers in a process group. Ray passes them their numbers after
    their start, where only they can read them; rank 0 hosts the store."""
    return {
        pid: Place(
            source=RAY,
            rank=0 if hosts_store(machine, pid) else None,
            local_rank=None,
            world_size=None,
            local_world_size=None,
            rendezvous=find_ray_job(machine, pid),
            one_host=False,
        )
        for pid, entry in machine.entries.items()
        if pid not in ranks
        and not entry.zombie
        and any(word.startswith(_WORKER) for word in machine.command(pid)[:1])
        and is_in_process_group(machine, pid)
    }


def find_ray_job(machine: Machine, pid: int) -> tuple[str, ...]:
    """A key of the Ray job whose driver or worker this is: `ray`, the cluster's session and the
    number of the job. Empty: it is neither, or its open files are not readable."""
    for path in machine.open_files(pid):
        log = _LOG_OF_JOB.search(path)
        if log is not None:
            return RAY, log[1], log[2] or log[3]
    return ()
