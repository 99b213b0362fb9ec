"""Which ranks and GPUs a filter leaves in a frame, and how the panels show that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from mgpu_doctor.case.device_samples import Device, DeviceProcess, DeviceSample, MigInstance
from mgpu_doctor.case.host_samples import HostSample
from mgpu_doctor.case.job_snapshots import JobSnapshot, Process, Role
from mgpu_doctor.case.model import Outcome
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.live.frame import Frame
from mgpu_doctor.tui.filter.language import parse
from mgpu_doctor.tui.filter.matching import pids, shown, used
from mgpu_doctor.tui.once import render
from mgpu_doctor.tui.panels import gpu_table, heatmap, rank_table
from mgpu_doctor.tui.view import View
from tests.support import diagnoses
from tests.support.frames import ALL, AT, EIGHT_GPUS, MANY_RANKS, NO_GPU, STRAGGLER, frame, gpu
from tests.support.gpus import busy_waiting
from tests.support.metadata import with_metadata


def shown_numbers(made: Frame, typed: str) -> tuple[list[int | None], list[int]]:
    """The numbers of the ranks and of the GPUs that are shown."""
    found = shown(made, parse(typed))
    return [rank.rank for rank in found.ranks], [gpu.device.index for gpu in found.gpus]


def machine(*devices: Device, **changes: Any) -> Frame:
    """Four ranks with pids 4000 to 4003, and these GPUs."""
    return structs.replace(STRAGGLER, devices=DeviceSample(AT, devices), **changes)


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("rank:1", ([1], [1])),
        ("rank:1,2", ([1, 2], [1, 2])),
        ("gpu:0-3", ([0, 1, 2], [0, 1, 2, 3])),
        ("power>1kW", ([1], [1])),
        ("rank:0-1 & util<91", ([0], [0])),
        ("!rank:1", ([0, 2, 3], [0, 2, 3, 4, 5, 6, 7])),
        ("pid:4001", ([1], [1])),
        ("pid:92", ([], [7])),
        ("util=?", ([3], [3, 4, 5])),
        ("rank=?", ([], [3, 4, 5, 6, 7])),
        ("gpu=?", ([3], [])),
        ("host:node-a", ([0, 1, 2, 3], [0, 1, 2])),
        ("rank:99", ([], [])),
        ("name:h100 | rank:3", ([0, 1, 2, 3], [0, 1, 2, 3, 4, 6, 7])),
    ],
)
def test_a_filter_leaves_the_rows_that_it_speaks_of(
    typed: str, expected: tuple[list[int], list[int]]
) -> None:
    assert shown_numbers(EIGHT_GPUS, typed) == expected


def test_the_same_filter_is_asked_anew_of_each_frame() -> None:
    only = parse("power>1kW")
    for made, expected in ((EIGHT_GPUS, [1]), (machine(gpu(5)), []), (EIGHT_GPUS, [1])):
        for _ in range(2):
            assert [gpu.device.index for gpu in shown(made, only).gpus] == expected
    assert len(shown(EIGHT_GPUS, None).gpus) == 8


def test_without_a_filter_everything_is_left() -> None:
    for made in ALL.values():
        found = shown(made, None)
        assert found.ranks == (made.diagnosis.ranks if made.diagnosis else ())
        devices = made.devices.devices if made.devices else ()
        assert tuple(gpu.device for gpu in found.gpus) == devices


def test_ranks_that_share_a_gpu_and_a_rank_on_several() -> None:
    made = machine(gpu(0, pids=(4000, 4001, 7)), gpu(1, pids=(4002,)), gpu(2, pids=(4002,)))
    assert shown_numbers(made, "rank:1") == ([1], [0])
    assert shown_numbers(made, "gpu:2") == ([2], [2])
    assert shown_numbers(made, "rank:2") == ([2], [1, 2])
    assert shown_numbers(made, "pid:7") == ([0, 1], [0])
    assert shown_numbers(made, "pid:4000") == ([0], [0])
    assert shown_numbers(made, "!rank:0,1") == ([2, 3], [1, 2])


def test_processes_count_wherever_the_device_lists_them() -> None:
    device = gpu(
        0,
        pids=(1,),
        processes=(DeviceProcess(1), DeviceProcess(4001)),
        instances=(MigInstance(pids=(4002,)),),
    )
    assert pids(device) == (1, 4001, 4002)
    assert shown_numbers(machine(device), "gpu:0") == ([1, 2], [0])


def test_pids_of_another_host_mean_nothing_here() -> None:
    here = HostSample(AT, None, None, None, None, None, host="node-b")
    made = machine(gpu(0, pids=(4001,)), host=here)
    assert used(made) == {}
    assert shown_numbers(made, "host:node-b") == ([], [0])
    assert used(structs.replace(made, host=structs.replace(here, host="node-a"))) == {1: (0,)}


def test_a_rank_that_names_its_gpu_is_found_without_its_pid() -> None:
    diagnosis = diagnoses.straggler(outcome=Outcome.RUNNING)
    case = diagnosis.case
    cases = tuple(
        with_metadata(replace(rank, device="cuda:0"), device_uuid=f"GPU-{rank.rank}")
        for rank in case.ranks
    )
    assert {rank.rank for rank in cases} == {0, 1, 2, 3}
    made = machine(*(gpu(index, pids=(90 + index,)) for index in range(4)))
    made = structs.replace(made, diagnosis=replace(diagnosis, case=replace(case, ranks=cases)))
    assert shown_numbers(made, "gpu:2") == ([2], [2])
    assert "rank 2, pid 92" in "\n".join(
        line.plain for line in gpu_table.gpu_lines(made, 120, View())
    )


def test_the_user_is_known_from_the_last_look() -> None:
    diagnosis = STRAGGLER.diagnosis
    assert diagnosis is not None
    process = Process(
        4002, None, Role.RANK, None, 2, None, None, None, (), None, None, None, None, None, "ann"
    )
    snapshot = JobSnapshot(AT, None, None, (process,), ())
    made = frame(replace(diagnosis, case=replace(diagnosis.case, job_snapshots=(snapshot,))))
    assert shown_numbers(made, "user:ann") == ([2], [])
    assert shown_numbers(made, "user=?") == ([0, 1, 3], [])


def test_ranks_are_found_by_what_they_are_bound_by_and_their_run_ahead() -> None:
    on_gpus = frame(diagnose(busy_waiting()))
    for typed, ranks in (("bound:host", [2]), ("bound=device", [0, 1, 3]), ("ahead<10ms", [2])):
        assert shown_numbers(on_gpus, typed)[0] == ranks
    assert shown_numbers(STRAGGLER, "bound=?")[0] == [0, 1, 2, 3]


def test_frames_without_a_job_or_a_gpu() -> None:
    assert shown_numbers(ALL["nothing"], "rank:0") == ([], [])
    assert shown_numbers(structs.replace(STRAGGLER, devices=None), "rank:0") == ([0], [])
    assert shown_numbers(structs.replace(STRAGGLER, devices=NO_GPU), "gpu:0") == ([], [])


def test_panels_say_how_many_are_shown() -> None:
    view = View(filter=parse("rank:1,37"))
    drawn = [line.plain for line in rank_table.rank_lines(MANY_RANKS, 120, view)]
    assert drawn[0] == "2 of 64 ranks shown: rank:1,37"
    assert len(drawn) == 5
    assert drawn[-1].split()[:2] == ["▸", "37"]
    drawn = [line.plain for line in gpu_table.gpu_lines(MANY_RANKS, 120, view)]
    assert drawn[0] == "1 of 8 GPUs shown: rank:1,37"
    assert len(drawn) == 3
    assert drawn[-1].split()[0] == "1"
    drawn = [line.plain for line in heatmap.heatmap_lines(MANY_RANKS, 120, view)]
    assert [line.split()[0] for line in drawn[1:]] == ["1", "37"]


def test_panels_say_that_nothing_matches() -> None:
    view = View(filter=parse("rank:1 rank:2"))
    assert (
        rank_table.rank_lines(EIGHT_GPUS, 80, view)[0].plain
        == "0 of 4 ranks shown: rank:1 & rank:2"
    )
    assert (
        gpu_table.gpu_lines(EIGHT_GPUS, 80, view)[0].plain == "0 of 8 GPUs shown: rank:1 & rank:2"
    )


@pytest.mark.parametrize("name", ALL)
def test_every_frame_can_be_filtered(name: str) -> None:
    for typed in ("gpu:0", "rank:0", "'[bold red]\u202e'" + " x" * 200, "!x"):
        for width in (20, 79, 200):
            drawn = render(ALL[name], width=width, colour=False, view=View(filter=parse(typed)))
            assert "\u202e" not in drawn
            assert max(map(len, drawn.splitlines())) <= width
