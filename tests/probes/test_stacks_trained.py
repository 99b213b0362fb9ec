"""Which thread of a Ray Train worker counts as the main thread."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from mgpu_probes.inprocess.layout import TRAINS
from mgpu_probes.outside import job_snapshot, processes
from mgpu_probes.outside.jobs import JobProcess, RunningJob
from mgpu_probes.outside.stacks import kernel_waits, stack_reader, stack_threads

WORKER = "ray::RayTrainWo"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A worker of four threads, of which 103 trains."""
    for tid in range(100, 104):
        folder = tmp_path / "100/task" / str(tid)
        folder.mkdir(parents=True)
        (folder / "comm").write_text(f"{TRAINS if tid == 103 else WORKER}\n")
    return tmp_path


def test_the_thread_that_the_probe_named_trains(proc: Path) -> None:
    assert job_snapshot.find_training_thread(proc, 100, WORKER) == 103
    assert job_snapshot.find_training_thread(proc, 100, "python") is None
    assert job_snapshot.find_training_thread(proc, 200, WORKER) is None
    (proc / "100/task/103/comm").write_text(f"{WORKER}\n")
    assert job_snapshot.find_training_thread(proc, 100, WORKER) is None


def test_its_stack_is_the_main_one() -> None:
    loop = stack_threads.make_thread([("main_loop", "ray/_private/worker.py", 1069)], main=True)
    begins = ("ThreadRunner._run_target", "/x/ray/train/worker_group/thread_runner.py", 40)
    learns = stack_threads.make_thread([("learn", "train.py", 7), begins], main=False)
    known = job_snapshot.put_training_thread_first(
        stack_threads.make_stack(100, 1.0, "py-spy", [loop, learns])
    )
    assert [(thread["frames"][0][0], thread["main"]) for thread in known["threads"]] == [
        ("learn", True),
        ("main_loop", False),
    ]
    other = stack_threads.make_stack(100, 1.0, "py-spy", [loop])
    assert job_snapshot.put_training_thread_first(other) == other


def test_without_the_probe_the_stack_shows_which_thread_trains(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    over, there = threading.Event(), threading.Event()
    ids: list[int] = []

    def waits() -> None:
        ids.append(threading.get_native_id())
        there.set()
        over.wait()

    other = threading.Thread(target=waits, daemon=True)
    other.start()
    assert there.wait(60)
    serves = stack_threads.make_thread([("main_loop", "ray/_private/worker.py", 1069)], main=True)

    def snapshot(*threads: stack_threads.Json) -> tuple[str, float | None]:
        stacks = [stack_threads.make_stack(os.getpid(), 1.0, "py-spy", threads)] if threads else []
        read = stack_reader.Reading(tuple(stacks))
        monkeypatch.setattr(stack_reader, "read_stacks", lambda *_, **__: read)
        seen = job_snapshot.take_snapshot(job)
        first = seen["stacks"][0]["threads"][0]["frames"][0][0] if stacks else ""
        return first, seen["processes"][0]["main_cpu_seconds"]

    pid = os.getpid()
    started = processes.find_start_ticks(pid) or 0
    worker = JobProcess(
        pid=pid,
        parent=os.getppid(),
        role="rank",
        state="S",
        rank=None,
        local_rank=None,
        world_size=None,
        name=WORKER,
        command=(WORKER,),
        start_ticks=started,
        cpu_seconds=0.0,
        uid=None,
        user=None,
        container=None,
        inner_pid=None,
    )
    job = RunningJob("ray", None, None, (worker,))
    begins = ("ThreadRunner._run_target", "/x/ray/train/worker_group/thread_runner.py", 40)
    learns = stack_threads.make_thread([("learn", "train.py", 7), begins], main=False, id=ids[0])
    main = kernel_waits.read_kernel_state(os.getpid()).main_cpu_seconds
    try:
        trains, its = snapshot(serves, learns)
        assert trains == "learn"
        assert None not in (its, main)
        assert (its or 0.0) < (main or 0.0)
        served, of_main = snapshot(serves)
        assert served == "main_loop"
        assert (of_main or 0.0) >= (main or 0.0)
        assert snapshot(serves, {**learns, "id": None}) == ("learn", None)
        assert snapshot() == ("", None)
    finally:
        over.set()
        other.join()


def test_what_the_kernel_tells_is_of_that_thread() -> None:
    over, there = threading.Event(), threading.Event()
    found: list[int] = []

    def waits() -> None:
        found.append(threading.get_native_id())
        there.set()
        over.wait()

    other = threading.Thread(target=waits, daemon=True)
    other.start()
    there.wait()
    main = kernel_waits.read_kernel_state(os.getpid())
    its = kernel_waits.read_kernel_state(os.getpid(), thread=found[0])
    over.set()
    other.join()
    assert main.main_cpu_seconds is not None
    assert its.main_cpu_seconds is not None
    assert its.main_cpu_seconds < main.main_cpu_seconds
