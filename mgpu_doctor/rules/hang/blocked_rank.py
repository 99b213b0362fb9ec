"""A blocked rank in words: what it is doing, whether that can end by itself, and what to do."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from mgpu_doctor.analysis.stacks import frames
from mgpu_doctor.analysis.stacks.progress import RankProgress
from mgpu_doctor.analysis.stacks.thread_states import ThreadState
from mgpu_doctor.analysis.stacks.wait_classifier import HOLDING_GIL, Doing
from mgpu_doctor.case.job_snapshots import Frame
from mgpu_doctor.findings import Fix

LEAST_LOOP_SNAPSHOTS = 3
"""Snapshots from which on a function that does not return is reported."""
_OTHER_END = re.compile(r", (?:written|read|locked) by (.+)$")
"""How the probe names the other end of a wait: `itself`, or `PID NAME`, several with commas."""
_MAY_TAKE_LONG = frozenset({Doing.CHECKPOINT, Doing.IMPORTING, Doing.COMPILING, Doing.OWN})
"""Reported only once they have lasted."""
_PRIORITY = (Doing.SLEEPING, Doing.IO, Doing.LOCK, *HOLDING_GIL, Doing.STOPPED, Doing.DEAD)


@dataclass(frozen=True, slots=True)
class WaitAssessment:
    """How certain it is that a rank blocks the others for good."""

    is_permanent: bool
    """It cannot end by itself."""
    confidence: float


_ASSESSMENTS = {
    Doing.STOPPED: WaitAssessment(True, 0.97),
    Doing.DEAD: WaitAssessment(True, 0.9),
    Doing.PROMPT: WaitAssessment(True, 0.9),
    Doing.SLEEPING: WaitAssessment(False, 0.6),
}
_UNSURE = WaitAssessment(False, 0.5)


def assess_wait(
    progress: RankProgress, snapshots: int, waiting: Collection[int] = ()
) -> WaitAssessment | None:
    """The assessment of what a rank is doing; None: it may just be a long step.

    `waiting`: pids of the ranks that wait for this one. What only they could do will not happen.
    """
    state = progress.state.point
    if progress.computing or progress.napping:
        return WaitAssessment(False, 0.6)
    if progress.looping:
        return _UNSURE if snapshots >= LEAST_LOOP_SNAPSHOTS else None
    if state.doing in _MAY_TAKE_LONG:
        return None
    is_own_doing = _waits_for_own_side(state, waiting)
    if state.doing is Doing.LOCK:
        return _assess_lock(progress, state, is_own_doing)
    holds_gil = state.doing in HOLDING_GIL and progress.process_idle
    if (is_own_doing and not state.busy) or holds_gil:
        return WaitAssessment(True, 0.85)
    return _ASSESSMENTS.get(state.doing, _UNSURE)


def _waits_for_own_side(state: ThreadState, waiting: Collection[int]) -> bool | None:
    """Whether only this process, or processes that wait for it, could end its wait. None:
    unknown."""
    other_end = _OTHER_END.search(state.operation or "")
    if other_end is None:
        return None
    holders = [holder.partition(" ")[0] for holder in other_end[1].split(", ")]
    above = state.pid - state.host_pid
    return all(
        holder == "itself" or (holder.isdigit() and int(holder) + above in waiting)
        for holder in holders
    )


def _assess_lock(
    progress: RankProgress, state: ThreadState, is_own_doing: bool | None
) -> WaitAssessment:
    """A deadlock if no one can release the lock: no other thread of the process is working, and no
    other process holds a file lock."""
    is_file_lock = (state.operation or "").startswith(("flock", "fcntl"))
    if state.busy or not progress.process_idle or (is_file_lock and not is_own_doing):
        return WaitAssessment(False, 0.55)
    return WaitAssessment(True, 0.85 if state.certain or is_file_lock else 0.75)


def wait_priority(doing: Doing) -> int:
    """Of several blocked ranks, the one with the highest priority is described: those that cannot
    go on by themselves come first."""
    return _PRIORITY.index(doing) if doing in _PRIORITY else -1


# ------------------------------------------------------------------------------ what it is doing

_PREDICATES = {
    Doing.STOPPED: "is stopped",
    Doing.DEAD: "has exited",
    Doing.NATIVE: "is blocked | in a C function that holds the GIL",
    Doing.TEARDOWN: "is blocked | while its process group ends, and holds the GIL",
    Doing.SLEEPING: "is sleeping",
    Doing.PROMPT: "waits | for keyboard input",
    Doing.CHILD: "waits | for a child process",
    Doing.CHECKPOINT: "is saving or loading a checkpoint",
    Doing.IMPORTING: "is importing a module",
    Doing.COMPILING: "is compiling",
    Doing.LOADER: "waits | for its data loader",
    Doing.BLOCKED: "is blocked | in a system call",
    Doing.UNINTERRUPTIBLE: "is blocked | in the kernel (uninterruptible sleep)",
    Doing.OWN: "is running",
    Doing.DEVICE: "waits | for its GPU",
    Doing.BACKWARD: "is in the backward pass",
    Doing.JOINING: "is joining the process group",
}
_VERBS = {
    "pread64": "read",
    "readv": "read",
    "pwrite64": "write",
    "writev": "write",
    "recvfrom": "receive from",
    "recvmsg": "receive from",
    "sendto": "send to",
    "sendmsg": "send to",
    **dict.fromkeys(
        ("poll", "ppoll", "select", "pselect6", "epoll_wait"), "get an event from a file"
    ),
}


def describe_activity(progress: RankProgress) -> str:
    """What a rank is doing, to follow its name: `waits in f() at train.py:87 for a lock`."""
    worker = progress.state.worker
    if worker is not None:
        activity = _describe_process(progress, worker)
        return f"waits for its data-loader worker {worker.host_pid}, which {activity}"
    return _describe_process(progress, progress.state)


def source_line(state: ThreadState) -> str | None:
    """The full path and line where a rank is, for evidence."""
    place = state.point.place
    if place is None:
        return None
    return place.file if place.line is None else f"{place.file}:{place.line}"


def _describe_process(progress: RankProgress, state: ThreadState) -> str:
    where = _describe_place(state)
    if progress.computing or progress.napping:
        return f"is {'computing' if progress.computing else 'polling'}{where}"
    if progress.looping:
        return f"keeps running{where} and does not return"
    if state.doing is Doing.LOCK:
        return f"waits{where} for {_describe_lock(state)}"
    if state.doing is Doing.IO:
        return f"waits{where} to {_describe_call(state)}"
    if state.doing is Doing.COLLECTIVE:
        return f"waits{where} in {state.operation}"
    verb, _, rest = _PREDICATES.get(state.doing, "is blocked").partition(" | ")
    return f"{verb}{where}{f' {rest}' if rest else ''}"


def _describe_place(state: ThreadState) -> str:
    if state.place is None:
        return ""
    library = frames.library_frame(state.trail)
    if library is not None and library != state.place:
        return f"{_describe_frame(library)}, called at {frames.format_location(state.place)},"
    return _describe_frame(state.place)


def _describe_frame(frame: Frame) -> str:
    function = frames.function_name(frame)
    inside = f" in {function}()" if function[:1] not in ("<", "") else ""
    return f"{inside} at {frames.format_location(frame)}"


def _describe_lock(state: ThreadState) -> str:
    operation = state.operation or ""
    if operation.startswith(("flock", "fcntl")):
        file = operation.partition(" ")[2]
        return f"the lock of the file {file}" if file else "a file lock"
    return "a lock or another thread" if state.certain else "a lock or native code"


def _describe_call(state: ThreadState) -> str:
    call, _, file = (state.operation or "read or write").partition(" ")
    return f"{_VERBS.get(call, call)} {file}".strip()


# ------------------------------------------------------------------------------------ what to do


def suggest_fixes(progress: RankProgress, *, alive: bool) -> tuple[Fix, ...]:
    """What to do about a rank that is blocked like this; empty: no specific advice."""
    state = progress.state.point
    if progress.state.doing is Doing.LOADER and state.doing is not Doing.STOPPED:
        return (_fix_loader(progress.state),)
    if progress.looping or progress.computing:
        return (_END_THE_LOOP,)
    if progress.napping:
        return (_DO_NOT_POLL,)
    if state.doing is Doing.STOPPED:
        command = f"`kill -CONT {state.host_pid}`. " if alive else ""
        return (
            Fix(
                "continue",
                "Continue the process",
                f"{command}It was stopped by SIGSTOP, by Ctrl-Z in its terminal, or by a debugger "
                "that is attached to it.",
            ),
        )
    fix = _FIXES.get(state.doing)
    return (fix,) if fix is not None else ()


def _fix_loader(state: ThreadState) -> Fix:
    worker = state.worker
    if worker is None:
        how = (
            "Its workers are idle or gone, so a batch or its index was lost between them. Set "
            "`DataLoader(…, timeout=60)` to get an error that names the worker, and try "
            "`num_workers=0`."
        )
    else:
        where = frames.format_location(worker.place) or "the dataset"
        how = (
            f"Fix {where}, where worker {worker.host_pid} is blocked. With `num_workers=0` the "
            "same code runs in the rank itself, under a debugger; `DataLoader(…, timeout=60)` "
            "turns such a wait into an error. A lock that was held while workers were forked is "
            "never released in them: create it in `worker_init_fn`, or use "
            "`multiprocessing_context='spawn'`."
        )
    return Fix("fix-the-data-set", "Fix what blocks the data-loader worker", how)


_END_THE_LOOP = Fix(
    "end-the-loop",
    "Find out why the function does not return",
    "Either a condition never becomes true on this rank, or it has far more work than the others. "
    "Print the loop counter together with the rank and compare it across ranks.",
)
_DO_NOT_POLL = Fix(
    "no-sleep",
    "Do not poll with sleep on a single rank",
    "If it waits for a file or a condition that another rank provides, that rank must not wait "
    "in a collective meanwhile. Let all ranks wait in `dist.barrier()` instead.",
)
_FIXES = {
    Doing.LOCK: Fix(
        "release-the-lock",
        "Find out who holds the lock",
        "A lock is never released if one thread takes it twice (use `threading.RLock`), if two "
        "threads take two locks in different orders, or if it was held when the process was "
        "forked. `lslocks` names the process that holds a file lock: no rank may wait in a "
        "collective while it holds one.",
    ),
    Doing.PROMPT: Fix(
        "answer-or-remove",
        "Answer the prompt, or remove the breakpoint",
        "`breakpoint()` and `input()` wait on every rank that reaches them, and under a launcher "
        "no one can type. Guard them with `if rank == 0: …`, followed by `dist.barrier()` on all "
        "ranks with a long timeout.",
    ),
    Doing.SLEEPING: _DO_NOT_POLL,
    Doing.IO: Fix(
        "bound-the-wait",
        "Set a timeout, and check the other end",
        "Whatever should write, read or answer at the other end does not: check what it is doing, "
        "and set a timeout (`socket.setdefaulttimeout(60)`, or `timeout=` of the call).",
    ),
    Doing.CHILD: Fix(
        "see-the-child",
        "Check what the child process is doing",
        "`ps --ppid PID -o pid,stat,wchan,cmd` shows it. Give `subprocess.run(…, timeout=60)` a "
        "time limit, and read its output: a full pipe blocks it.",
    ),
    Doing.NATIVE: Fix(
        "release-the-gil",
        "Release the GIL while the C function waits",
        "Call it through `ctypes.CDLL` rather than `PyDLL`, or put `Py_BEGIN_ALLOW_THREADS` around "
        "the wait (`py::gil_scoped_release` in pybind11). Until then no other thread of this rank "
        "can run, including the one that would end the wait.",
    ),
    Doing.TEARDOWN: Fix(
        "end-model-first",
        "Let go of the model before the process group",
        "`del model`, and what else refers to it, before `dist.destroy_process_group()` or the end "
        "of the script. Otherwise DistributedDataParallel lets go of the group last: PyTorch then "
        "waits for a thread of the group with the GIL held, which that thread needs to end.",
    ),
    Doing.CHECKPOINT: Fix(
        "see-the-storage",
        "Check the storage",
        "`df -h` and `dmesg -T` on that host: a full or lost file system blocks every writer.",
    ),
    Doing.UNINTERRUPTIBLE: Fix(
        "see-the-storage",
        "Check the disk, the network file system or the driver",
        "`cat /proc/PID/stack` (as root) and `dmesg -T` show what the kernel waits for. Such a "
        "process cannot even be killed before that answers.",
    ),
}
