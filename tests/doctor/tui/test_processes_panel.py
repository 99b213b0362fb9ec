"""Processes and graphs of a machine without a job: order, tree, filter, and the question first."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from mgpu_doctor.case.device_samples import DeviceProcess, DeviceSample
from mgpu_doctor.live.frame import Frame
from mgpu_doctor.live.history_collector import Collector
from mgpu_doctor.live.process_list import ListedProcess, ProcessList
from mgpu_doctor.tui.app import TopApp
from mgpu_doctor.tui.filter.language import parse
from mgpu_doctor.tui.jobs import stopping
from mgpu_doctor.tui.panels.machine_graphs import machine_lines
from mgpu_doctor.tui.panels.process_table import listed_processes, process_lines
from mgpu_doctor.tui.view import ProcessOrder, View
from tests.support.frames import AT, GIB, HOST, STRAGGLER, gpu
from tests.support.jobs import until as wait_until
from tests.support.screens import Still, screen_text, shown, until

ROWS = (
    ListedProcess(10, 1, "ann", ("bash",), AT - 9000, 0.0, 4 << 20),
    ListedProcess(11, 10, "ann", ("python", "train.py"), AT - 600, 1.5, 2 * GIB, (3,), 40 * GIB),
    ListedProcess(12, 11, "ann", ("loader",), AT - 500, 0.7, GIB),
    ListedProcess(20, 1, "bob", ("python", "x y.py"), AT - 90_000, 0.1, GIB, (0, 1), GIB),
    ListedProcess(99, gpus=(5,)),
)
MACHINE = Frame(
    at=AT,
    source="live",
    host=HOST,
    devices=DeviceSample(AT, tuple(gpu(index) for index in range(8))),
    processes=ROWS,
)


def pids(**view: Any) -> list[int]:
    return [one.pid for one, _ in listed_processes(MACHINE, View()._replace(**view))]


def test_each_order_puts_what_matters_first_and_the_unknown_last() -> None:
    assert pids() == [20, 11, 99, 12, 10]
    assert pids(process_order=ProcessOrder.GPU_MEMORY) == [11, 20, 12, 10, 99]
    assert pids(process_order=ProcessOrder.CPU) == [11, 12, 20, 10, 99]
    assert pids(process_order=ProcessOrder.CPU, processes_reversed=True) == [10, 20, 12, 11, 99]
    assert pids(process_order=ProcessOrder.AGE) == [20, 10, 11, 12, 99]
    assert pids(process_order=ProcessOrder.PID, processes_reversed=True) == [99, 20, 12, 11, 10]


def test_in_the_tree_children_follow_their_parents() -> None:
    tree = listed_processes(MACHINE, View(process_order=ProcessOrder.TREE))
    assert [(one.pid, depth) for one, depth in tree] == [
        (10, 0), (11, 1), (12, 2), (20, 0), (99, 0),
    ]  # fmt: skip


def test_the_filter_knows_command_user_and_gpu() -> None:
    assert pids(filter=parse("command:python")) == [20, 11]
    assert pids(filter=parse("user:bob")) == [20]
    assert pids(filter=parse("gpu:3")) == [11]


def test_a_row_says_what_is_known_and_fits() -> None:
    lines = [line.plain for line in process_lines(MACHINE, 100, View())]
    row = next(line for line in lines if " 11 " in line)
    assert row.split() == [
        "11", "ann", "3", "40", "GiB", "150", "%", "2", "GiB", "10", "min", "python", "train.py",
    ]  # fmt: skip
    assert "'x y.py'" in lines[1]
    assert next(line for line in lines if " 99 " in line).split()[-1] == "?"
    for width in (40, 80, 200):
        assert max(line.cell_len for line in process_lines(MACHINE, width, View())) <= width


def test_a_job_takes_the_place_of_processes_and_graphs() -> None:
    job = structs.replace(STRAGGLER, processes=ROWS)
    assert process_lines(job, 100, View()) == []
    assert machine_lines(job, 100, View()) == []


def test_graphs_show_the_mean_of_all_gpus_and_the_newest_values() -> None:
    samples = [
        DeviceSample(AT - ago, (gpu(0, utilization=0.2), gpu(1, utilization=0.6)))
        for ago in range(30, -1, -1)
    ]
    hosts = [
        structs.replace(HOST, at=AT - ago, traffic={"read": 1 << 30, "written": (40 - ago) << 20})
        for ago in range(30, -1, -1)
    ]
    frame = structs.replace(MACHINE, history=Collector.of(samples, hosts).history(AT))
    text = "\n".join(line.plain for line in machine_lines(frame, 120, View()))
    assert "GPU utilization  40 %" in text
    assert "cpu  63 %" in text
    assert "memory  38 %" in text
    assert "disk  1 MiB/s" in text
    assert "network  ?" in text
    without = structs.replace(frame, devices=None)
    assert "GPU" not in "\n".join(line.plain for line in machine_lines(without, 120, View()))


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        wait_until(lambda: bool(Path(f"/proc/{process.pid}/cmdline").read_bytes()))
        yield process
        process.kill()


def test_this_machine_is_listed_with_users_commands_and_gpus(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mgpu_doctor.live.process_list.sees_own_pids", lambda: True)
    monkeypatch.setattr("mgpu_doctor.live.process_list.MOST_OTHERS", 10_000)
    process = DeviceProcess(child.pid, 3 * GIB)
    sample = DeviceSample(AT, (gpu(4, pids=(), processes=(process,)), gpu(5, pids=(child.pid,))))
    (found,) = (one for one in ProcessList().read(sample) if one.pid == child.pid)
    assert (found.command, found.parent) == (("sleep", "600"), os.getpid())
    assert (found.gpus, found.gpu_memory) == ((4, 5), 3 * GIB)
    assert found.cores is None, "one look is no rate"


def test_in_a_container_a_gpus_pid_is_not_taken_for_a_process_here(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mgpu_doctor.live.process_list.sees_own_pids", lambda: False)
    monkeypatch.setattr("mgpu_doctor.live.process_list.MOST_OTHERS", 10_000)
    listed = ProcessList().read(DeviceSample(AT, (gpu(4, pids=(child.pid,)),)))
    first, own = (one for one in listed if one.pid == child.pid)
    assert (first.gpus, first.command) == ((4,), ())
    assert (own.gpus, own.command) == ((), ("sleep", "600"))


async def test_a_process_is_ended_only_after_a_question(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mgpu_doctor.live.process_list.MOST_OTHERS", 10_000)
    rows = [one for one in ProcessList().read(None) if one.pid == child.pid]
    app = TopApp(Still(structs.replace(MACHINE, processes=tuple(rows))))
    async with app.run_test(size=(120, 40)) as pilot:
        await shown(pilot)
        await until(pilot, lambda: getattr(app.focused, "id", "") == "processes", "the focus")
        await pilot.press("k")
        assert len(app.screen_stack) == 1, "no process is selected yet"
        await pilot.press("T", "down")
        assert app.view.process_order is ProcessOrder.TREE
        await until(pilot, lambda: app.view.process == child.pid, "the process is selected")
        await pilot.press("k")
        question = f"Stop process {child.pid}: sleep 600?"
        await until(pilot, lambda: question in screen_text(app), "the question")
        assert child.poll() is None
        await pilot.press("y")
        await until(pilot, lambda: child.poll() is not None, "the end")


def test_another_process_with_the_same_pid_is_left_alone(child: subprocess.Popen[bytes]) -> None:
    earlier = ListedProcess(child.pid, start_ticks=1, command=("sleep", "600"))
    assert stopping.aim_at_listed(earlier) == f"process {child.pid} has ended."
    of_host = ListedProcess(child.pid, gpus=(0,))
    assert "outside this container" in str(stopping.aim_at_listed(of_host))
    assert child.poll() is None
