"""From a case to a run that can be compared."""

from __future__ import annotations

from dataclasses import replace

import pytest
from mgpu_probes.inprocess.layout import PHASES, WAIT

from mgpu_doctor.analysis.comparing.compared_run import (
    Memory,
    Run,
    differing,
    measured,
    memory_of,
    settings_of,
)
from mgpu_doctor.case.device_samples import Device, DeviceProcess, DeviceSample
from mgpu_doctor.case.host_samples import HostSample
from mgpu_doctor.case.model import Case
from tests.support.compared_runs import fed_case
from tests.support.metadata import with_metadata
from tests.support.synthetic import Fault, Synthetic


def run_of(case: Case) -> Run:
    found = measured("run", case)
    assert isinstance(found, Run)
    return found


def batches(*digests: str) -> list[list[object]]:
    return [[0, 0, index, digest] for index, digest in enumerate(digests)]


def test_the_phases_add_up_to_the_mean_step() -> None:
    found = run_of(fed_case(Synthetic(ranks=4), 8))
    known = [seconds for seconds in found.phases.values() if seconds is not None]
    assert sum(known) == pytest.approx(found.mean.seconds, rel=1e-4)
    assert found.steps == 115, "without the first five"


def test_wait_and_data_that_moves_are_distinguished() -> None:
    slow = Fault(2, "forward", milliseconds=10)
    found = run_of(fed_case(Synthetic(ranks=4, communication=0.002, faults=(slow,)), 8))
    assert found.phases["communication"] == pytest.approx(0.002, rel=0.1)
    assert found.phases["wait"] == pytest.approx(0.0075, rel=0.15), "three of four wait 10 ms"
    assert found.in_collectives == pytest.approx(0.0095 / found.mean.seconds, rel=0.15)


def test_one_rank_alone_waits_for_nobody() -> None:
    case = fed_case(Synthetic(ranks=1), 8)
    case.ranks[0].steps["phases"][:, WAIT] = float("nan")
    found = run_of(case)
    assert (found.ranks, found.in_collectives, found.phases[PHASES[WAIT]]) == (1, 0.0, 0.0)


def test_all_ranks_samples_are_the_work_of_a_step() -> None:
    assert run_of(fed_case(Synthetic(ranks=4), 8)).work.samples == 32
    assert run_of(fed_case(Synthetic(ranks=4), 0)).work.samples is None


def test_ranks_that_share_their_batches_count_once() -> None:
    case = fed_case(Synthetic(ranks=4), 8)
    own = [f"{index}" for index in range(6)]
    other = [f"{index}'" for index in range(6)]
    ranks = tuple(
        with_metadata(rank, batches=batches(*(own if place < 2 else other)))
        for place, rank in enumerate(case.ranks)
    )
    assert run_of(replace(case, ranks=ranks)).work.samples == 16


def test_a_rank_that_died_early_makes_the_work_unknown() -> None:
    case = fed_case(Synthetic(ranks=4), 8)
    short = replace(case.ranks[3], steps=case.ranks[3].steps[:30])
    found = run_of(replace(case, ranks=(*case.ranks[:3], short)))
    assert (found.steps, found.work.samples) == (115, None)


def test_replicas_of_one_process_count_as_ranks() -> None:
    assert run_of(fed_case(Synthetic(ranks=1), 8, replicas=4)).ranks == 4
    assert run_of(fed_case(Synthetic(ranks=1), 8, data_parallel={"devices": 2})).ranks == 2
    assert run_of(fed_case(Synthetic(ranks=2), 8, replicas=10**9)).ranks == 2, "hardly"


def test_without_steps_it_says_why() -> None:
    case = fed_case(Synthetic(ranks=2), 8)
    bare = tuple(replace(rank, steps=rank.steps[:3]) for rank in case.ranks)
    assert measured("run", replace(case, ranks=bare)) == "it has no step after warm-up on record"
    assert isinstance(measured("run", replace(case, ranks=())), str)


def test_on_a_host_clock_waiting_is_not_known() -> None:
    case = fed_case(Synthetic(ranks=2, device="cuda:0"), 8, clock="host")
    found = run_of(case)
    assert found.in_collectives is None
    assert found.in_collectives_reason is not None
    assert found.phases["wait"] is None


def test_ranks_that_share_cores_are_reported() -> None:
    case = fed_case(Synthetic(ranks=4), 8, affinity=2, clock="cpu")
    (shared,) = run_of(case).shared
    assert (shared.ranks, shared.threads, shared.cores) == (4, 4, 2)
    assert not run_of(fed_case(Synthetic(ranks=2), 8, affinity=2, clock="cpu")).shared
    assert not run_of(fed_case(Synthetic(ranks=4), 8, affinity=2, clock="device")).shared


def test_memory_is_the_device_s_where_it_is_known() -> None:
    case = fed_case(Synthetic(ranks=2), 8)
    assert isinstance(memory_of(case), str)
    pids = [rank.pid or 0 for rank in case.ranks]
    usage = {pids[0]: (1.0, 300), pids[1]: (1.0, 500), 1: (1.0, 9000)}
    host = [
        HostSample(1.0, None, None, None, None, None, processes, host="node")
        for processes in (usage, {pids[0]: (2.0, 400)})
    ]
    case = replace(case, host_samples=tuple(host))
    assert memory_of(case) == Memory("resident on the host", {0: 400, 1: 500})
    device = Device(0, processes=(DeviceProcess(pids[1], 700), DeviceProcess(1, 9000)))
    case = replace(case, device_samples=(DeviceSample(1.0, (device,)),))
    assert memory_of(case) == Memory("used on the device", {1: 700})
    case.ranks[0].steps["device_bytes"][7] = 600
    assert memory_of(case) == Memory("allocated on the device", {0: 600})


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("torchrun --nproc-per-node 4 train.py --lr 0.1 --fast", {"lr": "0.1", "fast": "on"}),
        ("python -m torch.distributed.run --nproc-per-node=2 -m pkg.train --lr=1", {"lr": "1"}),
        ("python -m mgpu_trainers.apart --ranks 3 mgpu_trainers.pytorch.ps --lr 1", {"lr": "1"}),
        ("python train.py config.yaml --seed 3", {"seed": "3", "arguments": "config.yaml"}),
        ("./binary --lr 1", {}),
        ("", {}),
    ],
)
def test_the_program_s_options_are_settings(command: str, expected: dict[str, str]) -> None:
    case = fed_case(Synthetic(ranks=1), 8)
    job = replace(case.job, command=tuple(command.split()), framework=None, strategy=None)
    settings = settings_of(replace(case, job=job))
    settings.pop("program", None)
    assert settings.pop("threads") == "1"
    assert settings == expected


def test_a_thousand_hostile_options_are_bounded() -> None:
    case = fed_case(Synthetic(ranks=1), 8)
    words = tuple(f"--{number}{'x' * 5000}={'y' * 5000}" for number in range(1000))
    settings = settings_of(replace(case, job=replace(case.job, command=("train.py", *words))))
    assert len(settings) < 80
    assert max(map(len, [*settings, *settings.values()])) <= 200


def test_differing_settings_keep_their_order() -> None:
    assert differing([{"a": "1", "b": "1", "c": "1"}, {"c": "2", "b": "1"}]) == ("a", "c")


@pytest.mark.parametrize(("count", "steps"), [(50, 50), (49, 100)])
def test_a_rank_with_less_than_half_of_the_steps_is_left_out(count: int, steps: int) -> None:
    case = fed_case(Synthetic(ranks=3, steps=105), 8)
    short = replace(case.ranks[2], steps=case.ranks[2].steps[: 5 + count])
    found = run_of(replace(case, ranks=(*case.ranks[:2], short)))
    assert found.steps == steps
