"""How a rank that stands is told: what it does, whether that can end by itself, what to do."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from mgpu_doctor.analysis.stacks import frames
from mgpu_doctor.analysis.stacks.progress import Motion
from mgpu_doctor.analysis.stacks.thread_states import Posture
from mgpu_doctor.analysis.stacks.wait_classifier import Doing
from mgpu_doctor.case.looks import Frame
from mgpu_doctor.findings import Fix

TURN_LOOKS = 3
"""Looks from which a function that runs on is told at all."""
_HELD = re.compile(r", (?:written|read|locked) by (.+)$")
"""As the probe tells who is at the other end: `itself`, or `PID NAME`, several with commas."""
_QUIET = frozenset({Doing.CHECKPOINT, Doing.IMPORTING, Doing.COMPILING, Doing.OWN})
"""Rightly take a while: told only once they have lasted."""

_DOES = {
    Doing.STOPPED: "is stopped",
    Doing.DEAD: "has ended",
    Doing.NATIVE: "waits | in a C function that holds Python's lock (GIL)",
    Doing.SLEEPING: "sleeps",
    Doing.PROMPT: "waits | for somebody to type",
    Doing.CHILD: "waits | for a process that it started",
    Doing.CHECKPOINT: "saves or loads a checkpoint",
    Doing.IMPORTING: "imports a module",
    Doing.COMPILING: "compiles",
    Doing.LOADER: "waits | for its data loader",
    Doing.BLOCKED: "waits | in a call",
    Doing.UNINTERRUPTIBLE: "waits | inside the kernel, where it cannot be woken",
    Doing.OWN: "is in code of its own",
    Doing.DEVICE: "waits | for its GPU",
    Doing.BACKWARD: "is in the backward pass",
    Doing.JOINING: "joins the process group",
}


@dataclass(frozen=True, slots=True)
class Grade:
    """How sure one may be after seconds that a rank keeps the others waiting for good."""

    lasting: bool
    """It cannot end by itself."""
    confidence: float


def grade(motion: Motion, looks: int, waiting: Collection[int] = ()) -> Grade | None:
    """None: too early to tell it from a step that takes long. `waiting`: the processes that wait
    for this one; what only they could bring about will not come."""
    one = motion.posture.point
    if motion.turning:
        return Grade(False, 0.5) if looks >= TURN_LOOKS else None
    if one.doing in _QUIET:
        return None
    held = _held(one, waiting)
    if one.doing is Doing.LOCK:
        return _of_lock(motion, one, held)
    if (held and not one.busy) or (one.doing is Doing.NATIVE and motion.all_flat):
        return Grade(True, 0.85)
    return _FIXED.get(one.doing, Grade(False, 0.5))


def _held(one: Posture, waiting: Collection[int]) -> bool | None:
    """Whether the other end of what it waits for is in its own hands, or in those of processes
    that wait for it. None: not known."""
    found = _HELD.search(one.operation or "")
    if found is None:
        return None
    holders = [holder.partition(" ")[0] for holder in found[1].split(", ")]
    return all(
        holder == "itself" or (holder.isdigit() and int(holder) in waiting) for holder in holders
    )


_FIXED = {
    Doing.STOPPED: Grade(True, 0.97),
    Doing.DEAD: Grade(True, 0.9),
    Doing.PROMPT: Grade(True, 0.9),
    Doing.SLEEPING: Grade(False, 0.6),
}


def _of_lock(motion: Motion, one: Posture, held: bool | None) -> Grade:
    """A deadlock, if nobody is there to let go: no other thread of the process is at work, and a
    file's lock is no other process's."""
    file = (one.operation or "").startswith(("flock", "fcntl"))
    if one.busy or not motion.all_flat or (file and not held):
        return Grade(False, 0.55)
    return Grade(True, 0.85 if one.certain or file else 0.75)


def gravity(doing: Doing) -> int:
    """Of several that stand, the one to be told: who cannot go on by itself comes before others."""
    return _GRAVITY.index(doing) if doing in _GRAVITY else -1


_GRAVITY = (Doing.SLEEPING, Doing.IO, Doing.LOCK, Doing.NATIVE, Doing.STOPPED, Doing.DEAD)


def does(motion: Motion) -> str:
    """What it does, to follow its name: `waits for a lock in f at train.py:87`."""
    posture = motion.posture
    if posture.worker is not None:
        worker = posture.worker
        return f"waits for its data-loader worker {worker.pid}, which {_act(motion, worker)}"
    return _act(motion, posture)


def _act(motion: Motion, one: Posture) -> str:
    where = _where(one)
    if motion.turning:
        return f"runs on{where} and does not return"
    if one.doing is Doing.LOCK:
        return f"waits{where} for {_lock(one)}"
    if one.doing is Doing.IO:
        return f"waits{where} to {_call(one)}"
    if one.doing is Doing.COLLECTIVE:
        return f"waits{where} in {one.operation}"
    verb, _, rest = _DOES.get(one.doing, "stands").partition(" | ")
    return f"{verb}{where}{f' {rest}' if rest else ''}"


def _where(one: Posture) -> str:
    if one.place is None:
        return ""
    library = frames.foreign(one.trail)
    if library is not None and library != one.place:
        return f"{_inside(library)}, called at {frames.told(one.place)},"
    return _inside(one.place)


def _inside(frame: Frame) -> str:
    function = frames.name(frame)
    inside = f" in {function}()" if function[:1] not in ("<", "") else ""
    return f"{inside} at {frames.told(frame)}"


def _lock(one: Posture) -> str:
    operation = one.operation or ""
    if operation.startswith(("flock", "fcntl")):
        about = operation.partition(" ")[2]
        return f"the lock of the file {about}" if about else "a file's lock"
    return "a lock or another thread" if one.certain else "a lock, or in native code"


def _call(one: Posture) -> str:
    call, _, about = (one.operation or "read or write").partition(" ")
    return f"{_VERBS.get(call, call)} {about}".strip()


_VERBS = {
    "pread64": "read",
    "readv": "read",
    "pwrite64": "write",
    "writev": "write",
    "recvfrom": "receive from",
    "recvmsg": "receive from",
    "sendto": "send to",
    "sendmsg": "send to",
    **dict.fromkeys(("poll", "ppoll", "select", "pselect6", "epoll_wait"), "hear from a file"),
}


def site(one: Posture) -> str | None:
    """The whole path and the line, for evidence."""
    place = one.point.place
    if place is None:
        return None
    return place.file if place.line is None else f"{place.file}:{place.line}"


def fixes(motion: Motion) -> tuple[Fix, ...]:
    one = motion.posture.point
    if motion.posture.doing is Doing.LOADER and one.doing is not Doing.STOPPED:
        return (_for_loader(motion.posture),)
    if motion.turning:
        return (_LOOP,)
    made = _FIXES.get(one.doing)
    if one.doing is Doing.STOPPED:
        return (
            Fix(
                "continue",
                "Let it go on",
                f"`kill -CONT {one.pid}`. It was stopped by SIGSTOP, by Ctrl-Z in its terminal, or "
                "by a debugger that is attached to it.",
            ),
        )
    return (made,) if made is not None else ()


def _for_loader(posture: Posture) -> Fix:
    worker = posture.worker
    if worker is None:
        how = (
            "Its workers are idle or gone, so a batch or its index was lost between them. Set "
            "`DataLoader(…, timeout=60)`, so that this becomes an error that names the worker, and "
            "try `num_workers=0`."
        )
    else:
        where = frames.told(worker.place) or "its data set"
        how = (
            f"Mend {where}, which stands in worker {worker.pid}. With `num_workers=0` it happens "
            "in the rank itself, under a debugger; `DataLoader(…, timeout=60)` turns such a wait "
            "into an error. A lock that was held while workers were forked is never released in "
            "them: make it in `worker_init_fn`, or use `multiprocessing_context='spawn'`."
        )
    return Fix("mend-the-data-set", "Mend what the data-loader worker stands in", how)


_LOOP = Fix(
    "end-the-loop",
    "Look why the function does not return",
    "A condition that never comes true on this rank, or far more work than the others have: print "
    "what the loop counts, with the rank, and compare it with the others'.",
)
_FIXES = {
    Doing.LOCK: Fix(
        "release-the-lock",
        "Find who holds the lock",
        "A lock that is taken twice by one thread (use `threading.RLock`), taken in another order "
        "by two, or held when the process was forked is never released. A file's lock is held by "
        "the process that `lslocks` names: no rank may wait in a collective while it holds one.",
    ),
    Doing.PROMPT: Fix(
        "answer-or-remove",
        "Answer it, or take the breakpoint out",
        "`breakpoint()` and `input()` wait on each rank that comes there, and under a launcher "
        "nobody can type. Guard them, or let all ranks wait: `if rank == 0: …` and then "
        "`dist.barrier()` with a long timeout.",
    ),
    Doing.SLEEPING: Fix(
        "no-sleep",
        "Do not wait by sleeping on one rank alone",
        "If it waits for a file or a condition that another rank brings about, that one must not "
        "wait in a collective meanwhile: let all ranks wait in `dist.barrier()` instead.",
    ),
    Doing.IO: Fix(
        "bound-the-wait",
        "Bound the wait, and see to the other end",
        "Whoever should write, read or answer at the other end does not: see what it does, and set "
        "a timeout (`socket.setdefaulttimeout(60)`, `timeout=` of the call).",
    ),
    Doing.CHILD: Fix(
        "see-the-child",
        "See what the started process does",
        "`ps --ppid PID -o pid,stat,wchan,cmd` shows it; give `subprocess.run(…, timeout=60)` a "
        "time limit, and read its output, or a full pipe stops it.",
    ),
    Doing.NATIVE: Fix(
        "release-the-gil",
        "Let the C function release Python's lock while it waits",
        "Call it through `ctypes.CDLL` rather than `PyDLL`, or put `Py_BEGIN_ALLOW_THREADS` around "
        "the wait (`py::gil_scoped_release` in pybind11). Until then no other thread of this rank "
        "can run, also none that would end the wait.",
    ),
    Doing.CHECKPOINT: Fix(
        "see-the-storage",
        "See to the storage",
        "`df -h` and `dmesg -T` on that host: a full or lost file system stops whoever writes.",
    ),
    Doing.UNINTERRUPTIBLE: Fix(
        "see-the-storage",
        "See to the disk, the network file system or the driver",
        "`cat /proc/PID/stack` (as root) and `dmesg -T` tell what the kernel waits for; such a "
        "process cannot even be killed before that answers.",
    ),
}
