"""What a main thread is doing, by its innermost frames, else by its system call.

Frames of torch 2.4 to 2.13 (torch/distributed/distributed_c10d.py, torch/utils/data/dataloader.py,
torch/autograd/graph.py), as py-spy shows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from mgpu_doctor.analysis.stacks import frames
from mgpu_doctor.case.job_snapshots import Frame, Process, Stack, Thread


class Doing(str, Enum):
    """What a thread is doing."""

    COLLECTIVE = "collective"
    BACKWARD = "backward"
    """Computes gradients, or waits for those of the others: DDP waits inside of it."""
    DEVICE = "device"
    """Waits for its GPU, on which a collective may wait for the others."""
    JOINING = "joining"
    LOADER = "loader"
    LOCK = "lock"
    IO = "io"
    CHILD = "child"
    CHECKPOINT = "checkpoint"
    SLEEPING = "sleeping"
    PROMPT = "prompt"
    """Waits for keyboard input."""
    NATIVE = "native"
    """In a C function that waits while holding the GIL."""
    OWN = "own"
    IMPORTING = "importing"
    COMPILING = "compiling"
    ENDING = "ending"
    BLOCKED = "blocked"
    """In a call that waits for something unknown."""
    UNINTERRUPTIBLE = "uninterruptible"
    STOPPED = "stopped"
    DEAD = "dead"
    UNKNOWN = "unknown"


WAITING = frozenset({Doing.COLLECTIVE, Doing.BACKWARD, Doing.DEVICE, Doing.JOINING})
"""May wait for other ranks."""


@dataclass(frozen=True, slots=True)
class Leaf:
    doing: Doing
    operation: str | None = None
    """`all_reduce` of a collective, `read pipe:[7]` of a system call."""
    certain: bool = True
    """Whether frames show it. Otherwise only a system call does, perhaps made by a library."""


C10D = "torch/distributed/distributed_c10d.py"
BETWEEN_TWO = frozenset(
    ("send", "recv", "isend", "irecv", "batch_isend_irecv", "send_object_list", "recv_object_list")
)
"""Operations between two ranks."""
OPERATIONS = BETWEEN_TWO | {
    *("all_reduce", "all_reduce_coalesced", "reduce", "broadcast", "broadcast_object_list"),
    *("all_gather", "all_gather_into_tensor", "all_gather_coalesced", "all_gather_object"),
    *("reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single"),
    *("all_gather_single", "reduce_scatter_single"),  # from torch 2.13 on
    *("gather", "gather_object", "scatter", "scatter_object_list"),
    *("barrier", "monitored_barrier", "new_group", "new_subgroups", "split_group"),
    "destroy_process_group",
}

_DDP = {
    "_verify_param_shape_across_processes": "comparison of parameters",
    "_sync_module_states": "broadcast of parameters",
    "_sync_params_and_buffers": "broadcast of parameters",
    "_sync_buffers": "broadcast of buffers",
    "_sync_module_buffers": "broadcast of buffers",
    "_distributed_broadcast_coalesced": "broadcast of buffers",
}
_STAGE = ("_wait_batch_p2p", "torch/distributed/pipelining/schedules.py")
"""Waits for what was sent and received between two stages."""
_COMPILER = (
    "torch/_dynamo/convert_frame.py",
    "torch/_dynamo/symbolic_convert.py",
    "torch/_dynamo/output_graph.py",
    "torch/_inductor/compile_fx.py",
    "torch/_inductor/graph.py",
    "torch/_inductor/codecache.py",
    "torch/_inductor/async_compile.py",
    "triton/compiler/",
    "triton/runtime/autotuner.py",
    "torch/utils/cpp_extension.py",
)
_LOADERS = ("torch/utils/data/dataloader.py", "tensorflow/python/data/ops/")
_CHECKPOINTS = ("torch/serialization.py", "torch/distributed/checkpoint/", "safetensors/")
_DEVICES = ("torch/cuda/__init__.py", "torch/cuda/streams.py", "torch/xpu/__init__.py")
_LIBRARIES = {
    Doing.LOADER: _LOADERS,
    Doing.CHECKPOINT: _CHECKPOINTS,
    Doing.COMPILING: _COMPILER,
    Doing.PROMPT: ("pdb.py", "cmd.py", "IPython/", "prompt_toolkit/", "ipdb/"),
    Doing.IMPORTING: ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>"),
}
_TENSORFLOW = ("tensorflow/python/eager/execute.py", "tensorflow/python/client/session.py")
"""Functions that run whole steps, collectives included."""
_LOCKS = (
    "threading.py",
    "queue.py",
    "multiprocessing/synchronize.py",
    "multiprocessing/queues.py",
    "multiprocessing/pool.py",
    "concurrent/futures/",
    "filelock/",
)
_TALK = (
    "socket.py",
    "ssl.py",
    "http/",
    "urllib/",
    "urllib3/",
    "requests/",
    "botocore/",
    "selectors.py",
    "multiprocessing/connection.py",
)
_ENDS = (
    ("threading.py", "_shutdown"),
    ("multiprocessing/util.py", "_exit_function"),
    ("weakref.py", "_exitfunc"),
    ("concurrent/futures/thread.py", "_python_exit"),
    ("concurrent/futures/process.py", "_python_exit"),
    ("logging/__init__.py", "shutdown"),
)
"""What the interpreter calls at its end (CPython's `threading` and `atexit` callbacks)."""

_CALLS = {
    **dict.fromkeys(("futex", "semop", "semtimedop", "flock"), Doing.LOCK),
    **dict.fromkeys(("nanosleep", "clock_nanosleep", "pause"), Doing.SLEEPING),
    **dict.fromkeys(("wait4", "waitid"), Doing.CHILD),
    **dict.fromkeys(("read", "readv", "pread64", "write", "writev", "pwrite64"), Doing.IO),
    **dict.fromkeys(("poll", "ppoll", "select", "pselect6"), Doing.IO),
    **dict.fromkeys(("epoll_wait", "epoll_pwait", "epoll_pwait2"), Doing.IO),
    **dict.fromkeys(("connect", "accept", "accept4", "sendto", "sendmsg"), Doing.IO),
    **dict.fromkeys(("recvfrom", "recvmsg", "recvmmsg"), Doing.IO),
    **dict.fromkeys(("fsync", "fdatasync", "msync", "openat"), Doing.IO),
    **dict.fromkeys(("newfstatat", "statx", "getdents64"), Doing.IO),
}


def leaf(process: Process, stack: Stack | None, by_calls: Leaf | None) -> Leaf:
    """What the process's main thread does at this moment. `by_calls`: what its frames show."""
    by_state = _STATES.get(process.state or "")
    if process.state is None or by_state in (Doing.DEAD, Doing.STOPPED):
        return Leaf(by_state or Doing.DEAD)
    thread = stack.main if stack is not None else None
    if thread is None:
        return Leaf(by_state or Doing.UNKNOWN, process.syscall)
    if by_calls is not None:
        return by_calls
    return Leaf(by_state, process.syscall) if by_state else _by_kernel(process, thread)


def by_calls(trail: Sequence[Frame]) -> Leaf | None:
    """What the innermost frames show; None if they are only the user's own code, or of a
    library that says nothing of it. `trail`: a stack, made comparable."""
    called = frames.inner(trail)
    asked = (ask(called) for ask in (_joining, _ending, _collective, _by_library, _generic))
    return next((leaf for leaf in asked if leaf is not None), None)


_STATES = {
    "Z": Doing.DEAD,
    "X": Doing.DEAD,
    "T": Doing.STOPPED,
    "t": Doing.STOPPED,
    "D": Doing.UNINTERRUPTIBLE,
}


def _joining(called: Sequence[Frame]) -> Leaf | None:
    for frame in called:
        if frames.within(frame, "torch/distributed/rendezvous.py") or (
            frames.name(frame) == "init_process_group" and frames.within(frame, C10D)
        ):
            return Leaf(Doing.JOINING, "init_process_group")
        if frames.name(frame) == "ensure_initialized" and any(
            frames.within(other, "tensorflow/python/distribute/") for other in called
        ):
            return Leaf(Doing.JOINING, "the start of TensorFlow's cluster")
    return None


def _ending(called: Sequence[Frame]) -> Leaf | None:
    ends = any(
        frames.name(frame) == last and frames.within(frame, file)
        for frame in called
        for file, last in _ENDS
    )
    return Leaf(Doing.ENDING) if ends else None


def _collective(called: Sequence[Frame]) -> Leaf | None:
    """The outermost: the user's code called that one, and it may be made of others."""
    for frame in reversed(called):
        function = frames.name(frame)
        if frames.within(frame, C10D) and function in OPERATIONS:
            return Leaf(Doing.COLLECTIVE, function)
        if frames.within(frame, "torch/distributed/_functional_collectives.py"):
            private = function.startswith("_")  # waits for one that was begun before
            return Leaf(Doing.COLLECTIVE, "a collective" if private else function)
        if function == _STAGE[0] and frames.within(frame, _STAGE[1]):
            return Leaf(Doing.COLLECTIVE, "batch_isend_irecv")
        if function in _DDP and frames.within(
            frame, "torch/distributed/utils.py", "torch/nn/parallel/distributed.py"
        ):
            return Leaf(Doing.COLLECTIVE, _DDP[function])
        if function in ("synchronize", "poll") and frames.within(frame, "horovod/torch/mpi_ops.py"):
            return Leaf(Doing.COLLECTIVE, "Horovod operation")
    return None


def _by_library(called: Sequence[Frame]) -> Leaf | None:
    for frame in called:
        function = frames.name(frame)
        if function == "_engine_run_backward":
            return Leaf(Doing.BACKWARD, "backward")
        if function == "synchronize" and frames.within(frame, *_DEVICES):
            return Leaf(Doing.DEVICE, "synchronize")
        if frames.within(frame, *_TENSORFLOW):
            return Leaf(Doing.DEVICE, "TensorFlow's execution")
        for doing, files in _LIBRARIES.items():
            if frames.within(frame, *files):
                return Leaf(doing)
    return None


def _generic(called: Sequence[Frame]) -> Leaf | None:
    for frame in called:
        if frames.within(frame, "subprocess.py"):
            return Leaf(Doing.CHILD, frames.name(frame))
        if frames.within(frame, *_LOCKS):
            return Leaf(Doing.LOCK, f"{frames.short(frame.file)} {frames.name(frame)}")
        if frames.within(frame, *_TALK):
            return Leaf(Doing.IO, f"{frames.short(frame.file)} {frames.name(frame)}")
    return None


def _by_kernel(process: Process, thread: Thread) -> Leaf:
    call = (process.syscall or "").partition(" ")[0]
    if thread.gil and thread.active is False:
        return Leaf(Doing.NATIVE, process.syscall)
    if call == "read" and "/dev/pts/" in (process.syscall or "") and not thread.active:
        return Leaf(Doing.PROMPT, process.syscall)
    if call in _CALLS and not thread.active:
        return Leaf(_CALLS[call], process.syscall, certain=False)
    if call == "fcntl" and not thread.active:
        return Leaf(Doing.LOCK, process.syscall, certain=False)
    return Leaf(Doing.BLOCKED if thread.active is False else Doing.OWN, process.syscall)
