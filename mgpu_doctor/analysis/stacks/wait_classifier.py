"""Classifies what a main thread is doing: in a collective, computing, waiting for a lock, …

It goes by the innermost frames, else by the system call. `thread_states` calls it for each
snapshot. Where nothing shows what a thread does, it must answer BLOCKED or UNKNOWN, never guess. It
knows the frames of torch 2.4 to 2.13 (torch/distributed/distributed_c10d.py,
torch/utils/data/dataloader.py, torch/autograd/graph.py) as py-spy shows them.
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
    """Computes gradients, or waits for the others' gradients: DDP waits inside the backward
    pass."""
    DEVICE = "device"
    """Waits for its GPU, on which a collective may wait for other ranks."""
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
    TEARDOWN = "teardown"
    """The same, in the end of a process group, whose own threads may need the GIL to end."""
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
"""Activities in which a rank may be waiting for other ranks."""
HOLDING_GIL = (Doing.NATIVE, Doing.TEARDOWN)


@dataclass(frozen=True, slots=True)
class Classification:
    """What a thread is doing, and in which operation."""

    doing: Doing
    operation: str | None = None
    """`all_reduce` of a collective, `read pipe:[7]` of a system call."""
    certain: bool = True
    """Whether frames show it. False: only a system call does, which a library may have made."""


C10D = "torch/distributed/distributed_c10d.py"
REMOTE_CALLS = frozenset(("rpc_sync", "rpc.remote", "rpc.shutdown", "a remote call"))
"""Waits for what another process computes, through torch.distributed.rpc."""
BETWEEN_TWO = REMOTE_CALLS | {
    *("send", "recv", "isend", "irecv", "batch_isend_irecv"),
    *("send_object_list", "recv_object_list"),
}
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
_RPC = "torch/distributed/rpc/"
_RPC_WRAPPER = "wrapper"
"""Around each function of its interface."""
_REMOTE = {"rpc_sync": "rpc_sync", "remote": "rpc.remote", "shutdown": "rpc.shutdown"}
_STAGE = ("_wait_batch_p2p", "torch/distributed/pipelining/schedules.py")
"""The function in which a pipeline stage waits for its sends and receives."""
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
TENSORFLOW = "TensorFlow's execution"
"""The operation of a thread in TensorFlow's C++ code."""
_TENSORFLOW = ("tensorflow/python/eager/execute.py", "tensorflow/python/client/session.py")
"""Files whose functions run whole steps, including collectives."""
_LOCKS = (
    "threading.py",
    "queue.py",
    "multiprocessing/synchronize.py",
    "multiprocessing/queues.py",
    "multiprocessing/pool.py",
    "concurrent/futures/",
    "filelock/",
)
_NETWORK = (
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
_EXIT_FUNCTIONS = (
    ("threading.py", "_shutdown"),
    ("multiprocessing/util.py", "_exit_function"),
    ("weakref.py", "_exitfunc"),
    ("concurrent/futures/thread.py", "_python_exit"),
    ("concurrent/futures/process.py", "_python_exit"),
    ("logging/__init__.py", "shutdown"),
)
"""Functions that the interpreter calls when it exits (CPython's `threading` and `atexit`)."""

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


def classify_thread(
    process: Process, stack: Stack | None, by_frames: Classification | None
) -> Classification:
    """What the process's main thread does. `by_frames`: the result of `classify_frames`."""
    by_state = _STATES.get(process.state or "")
    if process.state is None or by_state in (Doing.DEAD, Doing.STOPPED):
        return Classification(by_state or Doing.DEAD)
    thread = stack.main if stack is not None else None
    if thread is None:
        return Classification(by_state or Doing.UNKNOWN, process.syscall)
    if by_frames is not None:
        return by_frames
    return Classification(by_state, process.syscall) if by_state else _by_kernel(process, thread)


def classify_frames(trail: Sequence[Frame]) -> Classification | None:
    """What the innermost frames show; None if they are the user's own code or of a library that is
    not known here. `trail`: a stack as `frames.trail` returns it."""
    called = frames.called_frames(trail)
    classifiers = (_joining, _ending, _remote_call, _collective, _by_library, _generic)
    results = (classifier(called) for classifier in classifiers)
    return next((result for result in results if result is not None), None)


RUNNABLE = "R"
"""The state of a process that runs or is ready to, as proc(5) has it."""
_STATES = {
    "Z": Doing.DEAD,
    "X": Doing.DEAD,
    "T": Doing.STOPPED,
    "t": Doing.STOPPED,
    "D": Doing.UNINTERRUPTIBLE,
}


def _joining(called: Sequence[Frame]) -> Classification | None:
    for frame in called:
        if frames.is_in(frame, "torch/distributed/rendezvous.py") or (
            frames.function_name(frame) == "init_process_group" and frames.is_in(frame, C10D)
        ):
            return Classification(Doing.JOINING, "init_process_group")
        if frames.function_name(frame) == "init_rpc" and frames.is_in(frame, _RPC):
            return Classification(Doing.JOINING, "init_rpc")
        if frames.function_name(frame) == "ensure_initialized" and any(
            frames.is_in(other, "tensorflow/python/distribute/") for other in called
        ):
            return Classification(Doing.JOINING, "the start of TensorFlow's cluster")
    return None


def _ending(called: Sequence[Frame]) -> Classification | None:
    ends = any(
        frames.function_name(frame) == last and frames.is_in(frame, file)
        for frame in called
        for file, last in _EXIT_FUNCTIONS
    )
    return Classification(Doing.ENDING) if ends else None


def _remote_call(called: Sequence[Frame]) -> Classification | None:
    """The outermost function of torch.distributed.rpc on the stack."""
    for frame in reversed(called):
        function = frames.function_name(frame)
        if frames.is_in(frame, _RPC) and function != _RPC_WRAPPER:
            return Classification(Doing.COLLECTIVE, _REMOTE.get(function, "a remote call"))
    return None


def _collective(called: Sequence[Frame]) -> Classification | None:
    """The outermost collective on the stack: the user called that one, and it may call others."""
    for frame in reversed(called):
        function = frames.function_name(frame)
        if frames.is_in(frame, C10D) and function in OPERATIONS:
            return Classification(Doing.COLLECTIVE, function)
        if frames.is_in(frame, "torch/distributed/_functional_collectives.py"):
            private = function.startswith("_")  # the wait for a collective begun earlier
            return Classification(Doing.COLLECTIVE, "a collective" if private else function)
        if function == _STAGE[0] and frames.is_in(frame, _STAGE[1]):
            return Classification(Doing.COLLECTIVE, "batch_isend_irecv")
        if function in _DDP and frames.is_in(
            frame, "torch/distributed/utils.py", "torch/nn/parallel/distributed.py"
        ):
            return Classification(Doing.COLLECTIVE, _DDP[function])
        if function in ("synchronize", "poll") and frames.is_in(frame, "horovod/torch/mpi_ops.py"):
            return Classification(Doing.COLLECTIVE, "Horovod operation")
    return None


def _by_library(called: Sequence[Frame]) -> Classification | None:
    for frame in called:
        function = frames.function_name(frame)
        if function == "_engine_run_backward":
            return Classification(Doing.BACKWARD, "backward")
        if function == "synchronize" and frames.is_in(frame, *_DEVICES):
            return Classification(Doing.DEVICE, "synchronize")
        if frames.is_in(frame, *_TENSORFLOW):
            return Classification(Doing.DEVICE, TENSORFLOW)
        for doing, files in _LIBRARIES.items():
            if frames.is_in(frame, *files):
                return Classification(doing)
    return None


def _generic(called: Sequence[Frame]) -> Classification | None:
    for frame in called:
        if frames.is_in(frame, "subprocess.py"):
            return Classification(Doing.CHILD, frames.function_name(frame))
        if frames.is_in(frame, *_LOCKS):
            return Classification(
                Doing.LOCK, f"{frames.short_path(frame.file)} {frames.function_name(frame)}"
            )
        if frames.is_in(frame, *_NETWORK):
            return Classification(
                Doing.IO, f"{frames.short_path(frame.file)} {frames.function_name(frame)}"
            )
    return None


def _by_kernel(process: Process, thread: Thread) -> Classification:
    call = (process.syscall or "").partition(" ")[0]
    if thread.gil and thread.active is False:
        return Classification(Doing.NATIVE, process.syscall)
    if call == "read" and "/dev/pts/" in (process.syscall or "") and not thread.active:
        return Classification(Doing.PROMPT, process.syscall)
    if call in _CALLS and not thread.active:
        return Classification(_CALLS[call], process.syscall, certain=False)
    if call == "fcntl" and not thread.active:
        return Classification(Doing.LOCK, process.syscall, certain=False)
    # A process in no call runs or waits for a core: it woke up since its stack was read.
    is_blocked = thread.active is False and process.state != RUNNABLE
    return Classification(Doing.BLOCKED if is_blocked else Doing.OWN, process.syscall)
