"""The work of a diagnosis grows with the number of ranks, not with its square.

It is counted in calls of functions, so that the speed of a machine does not matter.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from types import FrameType

from mgpu_doctor.case.device_samples import DeviceSample
from mgpu_doctor.case.host_samples import HostSample, Task
from mgpu_doctor.case.model import Case
from mgpu_doctor.diagnosis import diagnose
from tests.support.gpus import gpu
from tests.support.synthetic import Synthetic, synthetic_case

A_HOST = 4
LINEAR = 2.3
"""Times of the calls for twice the ranks. A loop over all ranks for each host makes it 3."""


def fleet(hosts: int) -> Case:
    """A job on so many hosts, all of which were sampled twice, with their GPUs."""
    case = synthetic_case(Synthetic(ranks=hosts * A_HOST, steps=40))
    ranks = tuple(
        replace(rank, host=f"node{place // A_HOST}") for place, rank in enumerate(case.ranks)
    )
    begin, end = ranks[0].started or 0.0, case.observed or 0.0
    moments = [(begin + end) / 2, end]
    return replace(
        case,
        ranks=ranks,
        host_samples=tuple(
            HostSample(
                at=at,
                host=f"node{host}",
                cores=64,
                load1=9.0,
                tasks={
                    rank.pid: Task(ran=at - begin, queued=0.0)
                    for rank in ranks[host * A_HOST : (host + 1) * A_HOST]
                    if rank.pid is not None
                },
            )
            for host in range(hosts)
            for at in moments
        ),
        device_samples=tuple(
            DeviceSample(
                at=at,
                host=f"node{host}",
                devices=tuple(
                    gpu(index, uuid=f"GPU-{host}-{index}", pids=()) for index in range(A_HOST)
                ),
            )
            for host in range(hosts)
            for at in moments
        ),
    )


def calls(case: Case) -> int:
    """Calls of functions, also of those in C, in the diagnosis of a case."""
    count = 0

    def counted(_frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    diagnose(case)  # what is computed once in a process
    sys.setprofile(counted)
    try:
        diagnose(case)
    finally:
        sys.setprofile(None)
    return count


def test_twice_the_hosts_take_twice_the_work() -> None:
    assert calls(fleet(80)) < LINEAR * calls(fleet(40))
