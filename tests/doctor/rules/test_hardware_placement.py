"""Rules about where ranks run and how their GPUs are joined, on cases made by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from mgpu_doctor.case.device_samples import Topology
from mgpu_doctor.case.host_samples import Cores, HostSample, Task
from mgpu_doctor.case.model import Case
from mgpu_doctor.findings import Severity
from tests.support.gpus import gpu
from tests.support.hardware import IDLE, hardware, job, only
from tests.support.metadata import with_metadata
from tests.support.rule_limits import equal_counts_as

# --- topology-slow --------------------------------------------------------------------------

PAIRS = Topology(
    levels=(
        ("SELF", "NVL", "SYS", "SYS"),
        ("NVL", "SELF", "SYS", "SYS"),
        ("SYS", "SYS", "SELF", "NVL"),
        ("SYS", "SYS", "NVL", "SELF"),
    ),
    peer=(("OK",) * 4,) * 4,
)
"""Two pairs with an NVLink, each on a CPU of its own."""


def on_pairs(*used: int, **changes: Any) -> Case:
    """A job of two ranks on two of the four GPUs of PAIRS."""
    case = job(2, topology=structs.replace(PAIRS, **changes))
    placed = [
        with_metadata(rank, device_uuid=f"GPU-{used[number]:04x}")
        for number, rank in enumerate(case.ranks)
    ]
    shown = tuple(
        gpu(i, pids=(1000 + used.index(i),)) if i in used else gpu(i, **IDLE) for i in range(4)
    )
    samples = [structs.replace(sample, devices=shown) for sample in case.device_samples]
    return replace(case, ranks=tuple(placed), device_samples=tuple(samples))


def test_ranks_on_far_gpus_while_near_ones_are_free() -> None:
    finding = only(on_pairs(0, 2))
    assert finding.code == "topology-slow"
    assert [culprit.rank for culprit in finding.culprits] == [0, 1]
    assert (finding.evidence[0].value, finding.evidence[0].baseline) == ("SYS", "NVL")
    assert "CUDA_VISIBLE_DEVICES=0,1" in finding.fixes[0].how


def test_near_gpus_and_a_full_machine_are_well() -> None:
    assert hardware(on_pairs(2, 3)) == []
    assert hardware(job(topology=PAIRS)) == []


def test_an_nvlink_that_may_not_be_used() -> None:
    barred = (("OK", "DR", "OK", "OK"), *PAIRS.peer[1:])
    finding = only(on_pairs(0, 1, peer=barred))
    assert (finding.code, finding.severity) == ("topology-slow", Severity.WARNING)
    assert "disabled in the driver" in finding.cause


def test_a_rank_without_an_nvlink() -> None:
    levels = [["SELF" if i == j else "NVL" for j in range(4)] for i in range(4)]
    for other in range(3):
        levels[3][other] = levels[other][3] = "SYS"
    alone = Topology(tuple(map(tuple, levels)), PAIRS.peer)
    finding = only(job(topology=alone))
    assert finding.code == "topology-slow"
    assert [culprit.rank for culprit in finding.culprits] == [3]


# --- numa-misplaced -------------------------------------------------------------------------


def bound(case: Case, cores: Mapping[int, frozenset[int]]) -> Case:
    """The ranks' main threads may run on these cores."""
    tasks = {
        1000 + rank: Task(ran=1.0, queued=0.0, age=1.0, cores=Cores(c)) for rank, c in cores.items()
    }
    samples = [
        HostSample(sample.at, None, 64, None, None, None, host="node", tasks=tasks)
        for sample in case.device_samples
    ]
    return replace(case, host_samples=tuple(samples))


FAR, NEAR = frozenset(range(32, 64)), frozenset(range(32))


@pytest.mark.parametrize(
    ("cores", "ranks"),
    [({0: NEAR, 1: FAR}, [1]), ({0: NEAR | FAR, 1: NEAR}, []), ({0: NEAR, 1: FAR | {3}}, [])],
    ids=["far", "near", "some near"],
)
def test_cores_far_from_the_gpu(cores: Mapping[int, frozenset[int]], ranks: list[int]) -> None:
    case = job(2, devices=[gpu(i, cores="0-31", numa_node=0) for i in range(2)])
    findings = hardware(bound(case, cores))
    assert [culprit.rank for one in findings for culprit in one.culprits] == ranks
    if ranks:
        assert findings[0].code == "numa-misplaced"
        assert "numactl --cpunodebind=0" in findings[0].fixes[0].how


# --- gpu-missing ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        ("0,1,2,7", "names device 7, but the host has 4"),
        ("0,1,1,2", "names device 1 twice"),
        ("GPU-0000,GPU-ffff", "names GPU-ffff, which the host does not have"),
        ("0,1,2,3", None),
        ("GPU-0003,GPU-0001", None),
        ("MIG-1/2/3", None),
        ("", None),
    ],
)
def test_lists_of_devices(listed: str, message: str | None) -> None:
    findings = hardware(job(visible_devices=listed))
    assert [one.code for one in findings] == ([] if message is None else ["gpu-missing"])
    assert all(message in one.title for one in findings if message)


@pytest.mark.parametrize(
    ("places", "ranks"),
    [((0, 1, 1, 3), {1, 2}), ((0, 1, 2, 3), set()), ((0, 0, 1, 1), set())],
    ids=["by mistake", "one each", "on purpose"],
)
def test_ranks_that_share_a_gpu(places: tuple[int, ...], ranks: set[int]) -> None:
    shown = [
        gpu(i, pids=tuple(1000 + rank for rank, place in enumerate(places) if place == i))
        if i in places
        else gpu(i, **IDLE)
        for i in range(4)
    ]
    case = job(devices=shown, device_uuid=lambda number: f"GPU-{places[number]:04x}")
    findings = [finding for finding in hardware(case) if finding.code == "gpu-missing"]
    assert {culprit.rank for one in findings for culprit in one.culprits} == ranks


def test_moving_that_takes_as_long_as_the_limit_makes_a_far_gpu_a_warning() -> None:
    case = on_pairs(0, 2)
    share = only(case).evidence[1].value
    assert equal_counts_as(case, "topology-slow", "share", share) == "more"


@pytest.mark.parametrize(
    ("other", "visible", "reported"),
    [
        ({}, None, True),
        ({}, "0,1,2,3", True),
        ({}, "0,1,3", False),
        ({"name": "Pretend L4"}, None, False),
        ({"utilization": 0.049}, None, True),
        ({"utilization": 0.05}, None, False),
        ({"utilization": None}, None, False),
        ({"pids": (7,)}, None, False),
        ({"trouble": "not supported: fan"}, None, False),
    ],
)
def test_a_free_gpu_is_one_that_a_rank_could_use(
    other: Mapping[str, Any], visible: str | None, reported: bool
) -> None:
    """Ranks 1 and 2 share GPU 1, and GPU 2 is left."""
    shown = [
        gpu(0, pids=(1000,)),
        gpu(1, pids=(1001, 1002)),
        gpu(2, **{**IDLE, **other}),
        gpu(3, pids=(1003,)),
    ]
    case = job(
        devices=shown,
        device_uuid=lambda number: f"GPU-{(0, 1, 1, 3)[number]:04x}",
        visible_devices=visible,
    )
    findings = [finding for finding in hardware(case) if finding.code == "gpu-missing"]
    assert [one.evidence[1].value for one in findings] == [1] * reported


def test_one_rank_alone_is_far_from_nobody() -> None:
    levels = (("SELF", "SYS", "NVL", "NVL"), *PAIRS.levels[1:])
    shown = [gpu(0, pids=(1000,)), *(gpu(index, **IDLE) for index in range(1, 4))]
    assert hardware(job(1, devices=shown, topology=Topology(levels, PAIRS.peer))) == []
