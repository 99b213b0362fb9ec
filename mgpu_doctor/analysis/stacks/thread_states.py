"""Where every rank of a look stands, data-loader workers and helper threads counted in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from mgpu_doctor.analysis.stacks import frames
from mgpu_doctor.analysis.stacks.wait_classifier import Doing, Leaf, by_calls, leaf
from mgpu_doctor.case.job_snapshots import Frame, Look, Process, Role, Stack, Thread

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
"""Where helper threads rest until they are given work."""
_LOCKING = ("PyThread_acquire_lock", "pthread_mutex_lock", "sem_wait", "_PyMutex_Lock", "lock_wait")
_COLLECTIVE = ("c10d::", "gloo::", "ProcessGroup", "ncclGroup", "MPI_")
_DEVICE = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "libcuda")

Natives = Mapping[tuple[Frame, ...], tuple[str, ...]]
"""Python frames, as a trail -> the C functions that they called, innermost first."""
_Way = tuple[tuple[Frame, ...], Frame | None, Leaf | None]

_WAITS = (
    (_COLLECTIVE, Doing.COLLECTIVE, "a collective"),
    (_DEVICE, Doing.DEVICE, "its GPU"),
)


@dataclass(frozen=True, slots=True)
class Posture:
    """One rank, or one data-loader worker, at one moment."""

    rank: int | None
    pid: int
    doing: Doing
    operation: str | None
    certain: bool
    """False: a system call alone tells what it does."""
    trail: tuple[Frame, ...]
    """Outermost first; of the thread that holds Python's lock, if that is another one."""
    place: Frame | None
    """The innermost frame of the user's own code."""
    process: Process
    at: float
    """When the look began."""
    gil: bool | None = None
    """That thread holds Python's lock."""
    busy: bool = False
    """Another thread of the process is in code of its own."""
    worker: Posture | None = None
    """The data-loader worker that it waits for."""
    started_cpu: float = 0.0
    """Processor seconds of the processes that it started, while it waits for one of them."""

    @property
    def point(self) -> Posture:
        """Where it really stands: in its data-loader worker, if it waits for that."""
        return self.worker or self


def postures(look: Look, native: Natives | None = None) -> tuple[Posture, ...]:
    """One a rank process, sorted by rank; zombies of ranks that live again are left out.
    `native`: what C functions were called from where, by this look or others."""
    stacks = _python(look)
    native = natives([look]) if native is None else native
    ways = _Ways()
    loaders: dict[int | None, list[Process]] = {}
    for process in look.processes:
        if process.role is Role.LOADER:
            loaders.setdefault(process.parent, []).append(process)

    def posture(process: Process) -> Posture:
        pid = process.pid
        return _posture(process, look.at, stacks.get(pid), native, ways)

    found: dict[int, Posture] = {}
    for process in look.ranks:
        one = posture(process)
        if one.doing is Doing.LOADER:
            one = replace(one, worker=_culprit(map(posture, loaders.get(process.pid, ()))))
        elif one.doing is Doing.CHILD:
            one = replace(one, started_cpu=_started_cpu(look, process.pid))
        key = process.rank if process.rank is not None else -process.pid
        if key not in found or found[key].doing is Doing.DEAD:
            found[key] = one
    return tuple(found[key] for key in sorted(found))


class _Ways:
    """What frames alone tell, worked out once for all ranks that stand alike."""

    def __init__(self) -> None:
        self._known: dict[tuple[Frame, ...], _Way] = {}

    def of(self, listed: tuple[Frame, ...]) -> _Way:
        """Of a thread's frames, innermost first: the trail, its place, and what it does there."""
        known = self._known.get(listed)
        if known is None:
            trail = frames.trail(listed)
            known = self._known[listed] = (trail, frames.place(trail), by_calls(trail))
        return known


def natives(looks: Iterable[Look]) -> Natives:
    """The C functions that were called, by the Python frames that called them. What stands in the
    same line waits for the same kind of thing, in whatever look or process it was seen."""
    found: dict[tuple[Frame, ...], tuple[str, ...]] = {}
    for stack in (one for look in looks for one in look.stacks if "native" in one.source):
        main = stack.main
        if main is None:
            continue
        called = takewhile(lambda one: not _of_python(one), main.frames)
        trail = frames.trail([frame for frame in main.frames if _of_python(frame)])
        found[trail] = tuple(one.function for one in called)
    return found


def _started_cpu(look: Look, pid: int) -> float:
    """Of all processes below it."""
    below = {pid}
    used = 0.0
    for _ in range(4):  # a shell, what it runs, and what that starts
        children = [
            process
            for process in look.processes
            if process.parent in below and process.pid not in below
        ]
        below.update(one.pid for one in children)
        used += sum(one.cpu_seconds or 0.0 for one in children)
    return used


def _python(look: Look) -> dict[int, Stack]:
    """The last stack of each process, of Python alone if there is one."""
    found = {stack.pid: stack for stack in look.stacks if "native" in stack.source}
    found.update({one.pid: one for one in look.stacks if "native" not in one.source})
    return found


def _posture(
    process: Process,
    at: float,
    stack: Stack | None,
    native: Natives,
    ways: _Ways,
) -> Posture:
    main = stack.main if stack is not None else None
    trail, place, told = ways.of(main.frames if main is not None else ())
    found = leaf(process, stack, told)
    if not found.certain or found.doing in (Doing.OWN, Doing.BLOCKED):
        found = _by_native(found, native.get(trail, ()))
    holder = _holder(stack)
    if holder is not None and found.doing in (Doing.OWN, Doing.LOCK, Doing.BLOCKED):
        found = Leaf(Doing.NATIVE, process.syscall)
        trail, place, _ = ways.of(holder.frames)
    return Posture(
        rank=process.rank,
        pid=process.pid,
        doing=found.doing,
        operation=found.operation,
        certain=found.certain,
        trail=trail,
        place=place,
        process=process,
        at=at,
        gil=True if holder is not None else main.gil if main is not None else None,
        busy=stack is not None and any(map(_works, stack.threads)),
    )


def _by_native(found: Leaf, called: Sequence[str]) -> Leaf:
    """What the C functions below the innermost Python frame tell of a wait."""
    for names, doing, what in _WAITS:
        if any(word in function for function in called for word in names):
            return Leaf(doing, what)
    if any(word in function for function in called for word in _LOCKING):
        return Leaf(Doing.LOCK, found.operation)
    return found


def _of_python(frame: Frame) -> bool:
    return frame.file.endswith((".py", ".pyc")) or frame.file[:1] == "<"


def _holder(stack: Stack | None) -> Thread | None:
    """Another thread than the main one that holds Python's lock."""
    threads = stack.threads if stack is not None else ()
    return next(
        (thread for thread in threads if thread.gil and not thread.main and thread.frames), None
    )


def _works(thread: Thread) -> bool:
    """Whether a helper thread is anywhere but where it rests."""
    if thread.main or not thread.frames:
        return False
    return bool(thread.active) or not frames.anywhere(thread.frames[:3], *_PARKED)


def _culprit(workers: Iterable[Posture]) -> Posture | None:
    """The worker that keeps its rank waiting: one that is in the data set, not idle."""
    busy = [worker for worker in workers if worker.doing is not Doing.UNKNOWN and not _idle(worker)]
    return min(busy, key=lambda one: _GRAVITY.get(one.doing, len(_GRAVITY)), default=None)


def _idle(worker: Posture) -> bool:
    return worker.place is None and frames.anywhere(
        worker.trail, "torch/utils/data/_utils/worker.py", "multiprocessing/"
    )


_GRAVITY = {
    doing: at
    for at, doing in enumerate(
        (Doing.DEAD, Doing.STOPPED, Doing.LOCK, Doing.NATIVE, Doing.IO, Doing.SLEEPING)
    )
}


def distinct(found: Sequence[Posture]) -> dict[tuple[Frame, ...], list[Posture]]:
    """By where they stand."""
    groups: dict[tuple[Frame, ...], list[Posture]] = {}
    for posture in found:
        groups.setdefault(posture.trail, []).append(posture)
    return groups
