"""What every rank of a snapshot is doing, by the stacks of its threads and data-loader workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from mgpu_doctor.analysis.stacks import frames
from mgpu_doctor.analysis.stacks.wait_classifier import (
    HOLDING_GIL,
    TENSORFLOW,
    Classification,
    Doing,
    classify_frames,
    classify_thread,
)
from mgpu_doctor.case.job_snapshots import (
    Frame,
    JobSnapshot,
    Process,
    Role,
    Stack,
    Thread,
    pid_on_host,
)

_PARKED = (
    "threading.py",
    "queue.py",
    "selectors.py",
    "multiprocessing/queues.py",
    "multiprocessing/connection.py",
    "concurrent/futures/thread.py",
    "tqdm/_monitor.py",
    "torch/utils/data/_utils/pin_memory.py",
    "torch/_inductor/compile_worker/",
    "torch/_inductor/async_compile.py",
    "torch/distributed/elastic/",
)
"""Files in which helper threads are idle."""
_CALLED_BY_TENSORFLOW = ("__call__", "tensorflow/python/ops/script_ops.py")
"""Function and file in which TensorFlow calls a Python function of a graph or of a data pipeline
(`tf.numpy_function`, `tf.py_function`), in a thread of its own. Before Python 3.11 a frame does not
know the class, `FuncRegistry`."""
_LOCKING = ("PyThread_acquire_lock", "pthread_mutex_lock", "sem_wait", "_PyMutex_Lock", "lock_wait")
_COLLECTIVE = ("c10d::", "gloo::", "ProcessGroup", "ncclGroup", "MPI_")
_DEVICE = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "libcuda")

NativeCalls = Mapping[tuple[Frame, ...], tuple[str, ...]]
"""Python frames, as a trail -> the C functions that they called, innermost first."""
_Way = tuple[tuple[Frame, ...], Frame | None, Classification | None]

_WAITS = (
    (_COLLECTIVE, Doing.COLLECTIVE, "a collective"),
    (_DEVICE, Doing.DEVICE, "its GPU"),
)


@dataclass(frozen=True, slots=True)
class ThreadState:
    """One rank, or one data-loader worker, at one moment."""

    rank: int | None
    pid: int
    """As in the snapshot, where pids of several hosts are told apart."""
    doing: Doing
    operation: str | None
    certain: bool
    """False: only a system call shows what it does."""
    trail: tuple[Frame, ...]
    """Outermost first; of the thread that holds Python's lock, if that is another one."""
    place: Frame | None
    """The innermost frame of the user's own code."""
    process: Process
    at: float
    """When the snapshot began, in seconds since the epoch."""
    gil: bool | None = None
    """Whether that thread holds Python's lock (GIL); None: unknown."""
    busy: bool = False
    """Whether another thread of the process is busy."""
    worker: ThreadState | None = None
    """The data-loader worker that the rank waits for."""
    started_cpu: float = 0.0
    """CPU seconds of its child processes, if it waits for one of them."""

    @property
    def point(self) -> ThreadState:
        """The state of the data-loader worker that the rank waits for, else its own."""
        return self.worker or self

    @property
    def host_pid(self) -> int:
        """Its pid on its host."""
        return pid_on_host(self.pid)


def list_thread_states(
    snapshot: JobSnapshot, native: NativeCalls | None = None
) -> tuple[ThreadState, ...]:
    """The state of each rank process, sorted by rank, without zombies of restarted ranks.

    `native`: the C functions that are called below Python frames, from these or other snapshots.
    """
    stacks = _newest_python_stacks(snapshot)
    native = native_calls([snapshot]) if native is None else native
    ways = _Ways()
    loaders: dict[int | None, list[Process]] = {}
    for process in snapshot.processes:
        if process.role is Role.LOADER:
            loaders.setdefault(process.parent, []).append(process)

    def state(process: Process) -> ThreadState:
        pid = process.pid
        return _read_state(process, snapshot.at, stacks.get(pid), native, ways)

    thread_states_by_rank: dict[int, ThreadState] = {}
    for process in snapshot.ranks:
        thread_state = state(process)
        if thread_state.doing is Doing.LOADER:
            thread_state = replace(
                thread_state, worker=_find_busy_worker(map(state, loaders.get(process.pid, ())))
            )
        elif thread_state.doing is Doing.CHILD:
            thread_state = replace(thread_state, started_cpu=_started_cpu(snapshot, process.pid))
        key = process.rank if process.rank is not None else -process.pid
        if key not in thread_states_by_rank or thread_states_by_rank[key].doing is Doing.DEAD:
            thread_states_by_rank[key] = thread_state
    return tuple(thread_states_by_rank[key] for key in sorted(thread_states_by_rank))


class _Ways:
    """What frames alone show, computed once for all ranks with the same frames."""

    def __init__(self) -> None:
        self._known: dict[tuple[Frame, ...], _Way] = {}

    def of(self, listed: tuple[Frame, ...]) -> _Way:
        """The trail, the place and the kind of wait of a thread's frames (innermost first)."""
        known = self._known.get(listed)
        if known is None:
            trail = frames.trail(listed)
            known = self._known[listed] = (trail, frames.user_frame(trail), classify_frames(trail))
        return known


def native_calls(snapshots: Iterable[JobSnapshot]) -> NativeCalls:
    """The C functions that were called, by the Python frames that called them.

    Threads on the same line wait for the same kind of thing, in whichever snapshot or process.
    """
    calls: dict[tuple[Frame, ...], tuple[str, ...]] = {}
    for stack in (
        stack for snapshot in snapshots for stack in snapshot.stacks if "native" in stack.source
    ):
        main = stack.main
        if main is None:
            continue
        called = takewhile(lambda frame: not _of_python(frame), main.frames)
        trail = frames.trail([frame for frame in main.frames if _of_python(frame)])
        calls[trail] = tuple(frame.function for frame in called)
    return calls


def _started_cpu(snapshot: JobSnapshot, pid: int) -> float:
    """CPU seconds of all processes below this one."""
    below = {pid}
    used = 0.0
    for _ in range(4):  # a shell, what it runs, and what that starts
        children = [
            process
            for process in snapshot.processes
            if process.parent in below and process.pid not in below
        ]
        below.update(child.pid for child in children)
        used += sum(child.cpu_seconds or 0.0 for child in children)
    return used


def _newest_python_stacks(snapshot: JobSnapshot) -> dict[int, Stack]:
    """Pid -> its newest stack, one without C frames if there is one."""
    stacks_by_rank = {stack.pid: stack for stack in snapshot.stacks if "native" in stack.source}
    stacks_by_rank.update(
        {stack.pid: stack for stack in snapshot.stacks if "native" not in stack.source}
    )
    return stacks_by_rank


def _read_state(
    process: Process,
    at: float,
    stack: Stack | None,
    native: NativeCalls,
    ways: _Ways,
) -> ThreadState:
    main = stack.main if stack is not None else None
    trail, place, doing = ways.of(main.frames if main is not None else ())
    innermost = classify_thread(process, stack, doing)
    if innermost.doing is Doing.NATIVE and _ends_group(native.get(trail, ())):
        innermost = Classification(Doing.TEARDOWN, process.syscall)
    elif not innermost.certain or innermost.doing in (Doing.OWN, Doing.BLOCKED):
        innermost = _refine_by_native_calls(innermost, native.get(trail, ()))
    holder = _find_gil_holder(stack)
    if holder is not None and innermost.doing in (Doing.OWN, Doing.LOCK, Doing.BLOCKED):
        innermost = Classification(Doing.NATIVE, process.syscall)
        trail, place, _ = ways.of(holder.frames)
    function = _find_called_function(stack) if innermost.operation == TENSORFLOW else None
    if function is not None:
        trail, place, doing = ways.of(function.frames)
        innermost = doing or Classification(Doing.BLOCKED)  # native frames: of the main thread only
    return ThreadState(
        rank=process.rank,
        pid=process.pid,
        doing=innermost.doing,
        operation=innermost.operation,
        certain=innermost.certain,
        trail=trail,
        place=place,
        process=process,
        at=at,
        gil=True if holder is not None else main.gil if main is not None else None,
        busy=stack is not None and any(map(_works, stack.threads)),
    )


def _find_called_function(stack: Stack | None) -> Thread | None:
    """The thread in which TensorFlow waits for a Python function of the user's, while no thread of
    the process is busy; None: there is none, or several."""
    threads = stack.threads if stack is not None else ()
    called = [thread for thread in threads if not thread.main and any(map(_calls, thread.frames))]
    if len(called) != 1 or called[0].active is not False:
        return None
    return None if any(_works(thread) for thread in threads if thread not in called) else called[0]


def _calls(frame: Frame) -> bool:
    function, file = _CALLED_BY_TENSORFLOW
    return frame.function.endswith(function) and frames.is_in(frame, file)


def _refine_by_native_calls(wait: Classification, called: Sequence[str]) -> Classification:
    """The wait, made more specific by the C functions below the innermost Python frame."""
    for names, doing, what in _WAITS:
        if any(word in function for function in called for word in names):
            return Classification(doing, what)
    if any(word in function for function in called for word in _LOCKING):
        return Classification(Doing.LOCK, wait.operation)
    return wait


def _ends_group(called: Sequence[str]) -> bool:
    """Whether a C++ destructor of a process group is among the C functions."""
    return any("::~ProcessGroup" in function for function in called)


def _of_python(frame: Frame) -> bool:
    return frame.file.endswith((".py", ".pyc")) or frame.file[:1] == "<"


def _find_gil_holder(stack: Stack | None) -> Thread | None:
    """The thread that holds Python's lock, if it is not the main thread."""
    threads = stack.threads if stack is not None else ()
    return next(
        (thread for thread in threads if thread.gil and not thread.main and thread.frames), None
    )


def _works(thread: Thread) -> bool:
    """Whether a helper thread is busy."""
    if thread.main or not thread.frames:
        return False
    return bool(thread.active) or not frames.is_any_in(thread.frames[:3], *_PARKED)


def _find_busy_worker(workers: Iterable[ThreadState]) -> ThreadState | None:
    """The data-loader worker that the rank waits for: one that is in the data set, not idle."""
    busy = [worker for worker in workers if worker.doing is not Doing.UNKNOWN and not _idle(worker)]
    return min(
        busy, key=lambda thread_state: _GRAVITY.get(thread_state.doing, len(_GRAVITY)), default=None
    )


def _idle(worker: ThreadState) -> bool:
    return worker.place is None and frames.is_any_in(
        worker.trail, "torch/utils/data/_utils/worker.py", "multiprocessing/"
    )


_GRAVITY = {
    doing: at
    for at, doing in enumerate(
        (Doing.DEAD, Doing.STOPPED, Doing.LOCK, *HOLDING_GIL, Doing.IO, Doing.SLEEPING)
    )
}


def group_by_trail(
    thread_states: Sequence[ThreadState],
) -> dict[tuple[Frame, ...], list[ThreadState]]:
    """The states by trail."""
    groups: dict[tuple[Frame, ...], list[ThreadState]] = {}
    for state in thread_states:
        groups.setdefault(state.trail, []).append(state)
    return groups
