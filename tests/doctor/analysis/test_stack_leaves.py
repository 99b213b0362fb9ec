"""Frames: whose code they are, which are wrappers, and what the innermost ones show."""

from __future__ import annotations

import pytest

from mgpu_doctor.analysis.stacks import frames
from mgpu_doctor.analysis.stacks.thread_states import ThreadState, list_thread_states
from mgpu_doctor.analysis.stacks.wait_classifier import Doing
from mgpu_doctor.case.job_snapshots import Frame
from mgpu_doctor.case.user_code import is_user_code
from tests.support import job_snapshots
from tests.support.job_snapshots import (
    C10D,
    LOOP,
    REMOTE_CALL,
    SERVING,
    ProcessState,
    SnapshotSeries,
)


def state(seen: ProcessState, worker: ProcessState | None = None) -> ThreadState:
    scene = SnapshotSeries({0: [seen]}, workers={0: [worker]} if worker else {}, count=1)
    (thread_state,) = list_thread_states(scene.snapshots()[0])
    return thread_state


@pytest.mark.parametrize(
    ("file", "own", "short"),
    [
        ("/home/someone/project/train.py", True, "train.py"),
        ("/home/someone/lib/train.py", True, "train.py"),
        ("train.py", True, "train.py"),
        ("/opt/venv/lib/python3.11/site-packages/torch/nn/linear.py", False, "torch/nn/linear.py"),
        ("/usr/lib/python3/dist-packages/numpy/a.py", False, "numpy/a.py"),
        ("/usr/lib/python3.12/threading.py", False, "threading.py"),
        ("/opt/conda/lib/python3.10/site-packages/x/y.py", False, "x/y.py"),
        ("/src/pytorch/torch/distributed/distributed_c10d.py", False, C10D),
        ("torch/distributed/distributed_c10d.py", False, C10D),
        ("/home/someone/torch/train.py", True, "train.py"),
        ("threading.py", False, "threading.py"),
        ("<frozen importlib._bootstrap>", False, "<frozen importlib._bootstrap>"),
        ("<string>", False, "<string>"),
        ("/opt/venv/bin/torchrun", False, "torchrun"),
        ("", False, ""),
    ],
)
def test_whose_a_frame_is_and_how_its_file_is_called(file: str, own: bool, short: str) -> None:
    assert is_user_code(file) is own
    assert frames.short_path(file) == short


def test_a_trail_has_no_wrappers_and_begins_with_the_users_own_code() -> None:
    calls = (
        "_run_module_as_main <frozen runpy>:198",
        "<module> /opt/venv/bin/torchrun:8",
        *job_snapshots.collective(),
    )
    trail = frames.trail(job_snapshots.frames(calls))
    assert [frames.format_call(frame) for frame in trail] == [
        "<module> train.py:90",
        "main train.py:81",
        "train train.py:60",
        "exchange train.py:65",
        "all_reduce distributed_c10d.py:3252",
    ]
    assert frames.format_location(frames.user_frame(trail)) == "train.py:65"


def test_a_workers_trail_has_none_of_its_parents_frames() -> None:
    trail = frames.trail(
        job_snapshots.frames((*job_snapshots.FETCHING, "DS.__getitem__ data.py:9"))
    )
    assert [frames.format_call(frame) for frame in trail] == ["__getitem__ data.py:9"]


def test_where_no_code_is_the_users_a_library_other_than_torch_is_the_place() -> None:
    trail = frames.trail(
        job_snapshots.frames(
            ("Trainer.train transformers/trainer.py:7", "linear torch/nn/functional.py:9")
        )
    )
    assert frames.format_location(frames.user_frame(trail)) == "transformers/trainer.py:7"


def test_a_deep_or_empty_stack_is_borne() -> None:
    assert frames.trail(()) == ()
    assert frames.user_frame(()) is None
    note = Frame("… 1500 frames", "…", None)
    assert not is_user_code(note.file)
    assert frames.trail((Frame("f", "/a/b.py", None), note))[0].function == "f"


USER = (*LOOP, "work util.py:12")
CASES = {
    "all_reduce": (ProcessState(job_snapshots.collective()), Doing.COLLECTIVE, "all_reduce"),
    "object collective": (
        ProcessState((*job_snapshots.collective("all_gather_object"), f"all_gather {C10D}:9")),
        Doing.COLLECTIVE,
        "all_gather_object",
    ),
    "wait between two stages": (
        ProcessState((*LOOP, "_wait_batch_p2p torch/distributed/pipelining/schedules.py:683")),
        Doing.COLLECTIVE,
        "batch_isend_irecv",
    ),
    "remote call": (ProcessState(REMOTE_CALL), Doing.COLLECTIVE, "rpc_sync"),
    "server that waits for the end": (ProcessState(SERVING), Doing.COLLECTIVE, "rpc.shutdown"),
    "joining by RPC": (
        ProcessState((*LOOP, "init_rpc torch/distributed/rpc/__init__.py:203")),
        Doing.JOINING,
        "init_rpc",
    ),
    "wait for one begun before": (
        ProcessState((*LOOP, "__torch_dispatch__ torch/distributed/_functional_collectives.py:9")),
        Doing.COLLECTIVE,
        "a collective",
    ),
    "buffers": (
        ProcessState(
            (
                *LOOP,
                "forward torch/nn/parallel/distributed.py:1600",
                "_sync_buffers torch/nn/parallel/distributed.py:2100",
            )
        ),
        Doing.COLLECTIVE,
        "broadcast of buffers",
    ),
    "backward": (ProcessState(job_snapshots.BACKWARD), Doing.BACKWARD, "backward"),
    "hook in backward": (
        ProcessState(
            (*job_snapshots.BACKWARD, "hook train.py:5"), active=True, gil=True, syscall=None
        ),
        Doing.OWN,
        None,
    ),
    "barrier while joining": (
        ProcessState((*job_snapshots.JOINING[:-2], f"barrier {C10D}:1")),
        Doing.JOINING,
        "init_process_group",
    ),
    "joining a TensorFlow cluster": (
        ProcessState(
            (
                *job_snapshots.ROOT,
                "_initialize_multi_worker tensorflow/python/distribute/"
                "collective_all_reduce_strategy.py:602",
                "ensure_initialized tensorflow/python/eager/context.py:745",
            )
        ),
        Doing.JOINING,
        "the start of TensorFlow's cluster",
    ),
    "joining": (ProcessState(job_snapshots.JOINING), Doing.JOINING, "init_process_group"),
    "synchronize": (
        ProcessState((*LOOP, "synchronize torch/cuda/__init__.py:800"), active=True),
        Doing.DEVICE,
        "synchronize",
    ),
    "importing": (ProcessState(job_snapshots.IMPORTING, active=True), Doing.IMPORTING, None),
    "compiling": (ProcessState(job_snapshots.COMPILING, active=True), Doing.COMPILING, None),
    "saving": (ProcessState(job_snapshots.SAVING, syscall="write /x"), Doing.CHECKPOINT, None),
    "loading": (ProcessState(job_snapshots.LOADING, syscall="poll"), Doing.LOADER, None),
    "thread's lock": (
        ProcessState((*USER, "Condition.wait threading.py:327")),
        Doing.LOCK,
        "threading.py wait",
    ),
    "futex": (ProcessState(USER, syscall="futex"), Doing.LOCK, "futex"),
    "flock": (ProcessState(USER, syscall="flock /data/x.lock"), Doing.LOCK, "flock /data/x.lock"),
    "sleep": (ProcessState(USER, syscall="clock_nanosleep"), Doing.SLEEPING, "clock_nanosleep"),
    "pipe": (ProcessState(USER, syscall="read pipe:[7]"), Doing.IO, "read pipe:[7]"),
    "terminal": (ProcessState(USER, syscall="read /dev/pts/3"), Doing.PROMPT, "read /dev/pts/3"),
    "pdb": (
        ProcessState((*USER, "interaction pdb.py:9"), syscall="read pipe:[1]"),
        Doing.PROMPT,
        None,
    ),
    "socket": (ProcessState((*USER, "recv_into socket.py:718")), Doing.IO, "socket.py recv_into"),
    "child": (ProcessState((*USER, "wait subprocess.py:1264")), Doing.CHILD, "wait"),
    "held GIL": (
        ProcessState(USER, syscall="clock_nanosleep", gil=True),
        Doing.NATIVE,
        "clock_nanosleep",
    ),
    "running": (ProcessState(USER, syscall=None, active=True, gil=True), Doing.OWN, None),
    "unknown wait": (ProcessState(USER, syscall=None), Doing.BLOCKED, None),
    "exit": (
        ProcessState(("_shutdown threading.py:1590", "wait threading.py:3")),
        Doing.ENDING,
        None,
    ),
    "finalizer at exit": (
        ProcessState(("_exitfunc weakref.py:666", "_del_library torch/library.py:662")),
        Doing.ENDING,
        None,
    ),
    "stopped": (ProcessState(job_snapshots.collective(), state="T"), Doing.STOPPED, None),
    "zombie": (ProcessState(state="Z"), Doing.DEAD, None),
    "gone": (ProcessState(state=None), Doing.DEAD, None),
    "disk": (
        ProcessState(USER, state="D", syscall="openat"),
        Doing.UNINTERRUPTIBLE,
        "openat",
    ),
    "no stack": (ProcessState(unread=True), Doing.UNKNOWN, "futex"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_a_main_thread_does(name: str) -> None:
    seen, doing, operation = CASES[name]
    found = state(seen)
    assert (found.doing, found.operation) == (doing, operation)


def test_another_thread_that_holds_pythons_lock_is_where_the_rank_stands() -> None:
    found = state(ProcessState(USER, syscall="futex", holder=("hog util.py:99",)))
    assert found.doing is Doing.NATIVE
    assert frames.format_location(found.place) == "util.py:99"


def test_native_frames_tell_a_lock_from_a_wait_for_a_collective() -> None:
    lock = state(ProcessState(USER, native=("futex_wait", "PyThread_acquire_lock_timed")))
    assert (lock.doing, lock.certain) == (Doing.LOCK, True)
    work = state(
        ProcessState(USER, native=("futex_wait", "c10d::ProcessGroupGloo::AsyncWork::wait"))
    )
    assert (work.doing, work.certain) == (Doing.COLLECTIVE, True)
    plain = state(ProcessState(USER, native=("futex_wait", "something_else")))
    assert (plain.doing, plain.certain) == (Doing.LOCK, False)


def test_the_end_of_a_process_group_with_the_gil_held_is_told_from_other_c_functions() -> None:
    calls = ("std::thread::join", "c10d::ProcessGroupGloo::~ProcessGroupGloo")
    ending = state(ProcessState(USER, syscall="futex", gil=True, native=calls))
    assert ending.doing is Doing.TEARDOWN
    other = state(ProcessState(USER, syscall="futex", gil=True, native=calls[:1]))
    assert other.doing is Doing.NATIVE


def test_the_worker_that_is_in_the_data_set_is_the_one_that_is_waited_for() -> None:
    stuck = state(
        ProcessState(job_snapshots.LOADING, syscall="poll"),
        ProcessState((*job_snapshots.FETCHING, "DS.__getitem__ data.py:9", "take util.py:31")),
    )
    assert stuck.worker is not None
    assert (stuck.point.doing, frames.format_location(stuck.point.place)) == (
        Doing.LOCK,
        "util.py:31",
    )
    idle = state(
        ProcessState(job_snapshots.LOADING, syscall="poll"),
        ProcessState(job_snapshots.IDLE_WORKER, syscall="poll"),
    )
    assert idle.worker is None


def test_a_helper_thread_at_rest_is_not_busy() -> None:
    parked = ("_worker concurrent/futures/thread.py:81",)
    assert not state(ProcessState(USER, helpers=[parked])).busy
    assert state(ProcessState(USER, helpers=[parked, ("upload util.py:4",)])).busy


@pytest.mark.parametrize(("inner", "busy"), [(0, False), (2, False), (3, True)])
def test_a_helper_thread_is_at_rest_if_one_of_its_three_innermost_calls_parks_it(
    inner: int, busy: bool
) -> None:
    below = [f"f util.py:{line}" for line in range(inner)]
    assert state(ProcessState(USER, helpers=[("wait threading.py:327", *below)])).busy is busy
