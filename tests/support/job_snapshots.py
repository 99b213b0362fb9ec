"""Hand-made job snapshots: processes that are blocked, busy, waiting or dead, as the probe reports
them.

A stack is written outermost frame first, as `function file:line`. `train.py` and the other
`_USER_FILES` count as the user's code, all other files as a library's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mgpu_doctor.case.job_snapshots import Frame, JobSnapshot, Process, Role, Stack, Thread
from mgpu_doctor.case.model import Case, Job, Outcome, Rank, Subject

START = 1_790_000_000.0
HOME = "/home/someone/project"
SITE = "/opt/venv/lib/python3.11/site-packages"
STANDARD = "/usr/lib/python3.11"
_USER_FILES = ("train.py", "data.py", "util.py", "model.py")
_LIBRARIES = ("torch/", "tensorflow/", "filelock/", "transformers/", "horovod/", "numpy/")

ROOT = ("<module> train.py:90", "main train.py:81")
LOOP = (*ROOT, "Job.train train.py:60")
C10D = "torch/distributed/distributed_c10d.py"
LOGGER = "_exception_logger.<locals>.wrapper torch/distributed/c10d_logger.py:83"


def collective(operation: str = "all_reduce", line: int = 65) -> tuple[str, ...]:
    """The stack of a rank that waits in a collective of gloo."""
    return (*LOOP, f"Job.exchange train.py:{line}", LOGGER, f"{operation} {C10D}:3252")


BACKWARD = (
    *LOOP,
    "Tensor.backward torch/_tensor.py:623",
    "backward torch/autograd/__init__.py:395",
    "_engine_run_backward torch/autograd/graph.py:979",
)
JOINING = (
    *ROOT,
    LOGGER,
    f"init_process_group {C10D}:1892",
    "_env_rendezvous_handler torch/distributed/rendezvous.py:280",
    "_create_c10d_store torch/distributed/rendezvous.py:199",
)
REMOTE_CALL = (
    *LOOP,
    "_require_initialized.<locals>.wrapper torch/distributed/rpc/api.py:101",
    "rpc_sync torch/distributed/rpc/api.py:842",
)
SERVING = (
    *ROOT,
    "_require_initialized.<locals>.wrapper torch/distributed/rpc/api.py:101",
    "shutdown torch/distributed/rpc/api.py:386",
    "_wait_all_workers torch/distributed/rpc/api.py:318",
    "_all_gather torch/distributed/rpc/api.py:252",
)
LOADING = (
    *LOOP,
    "__next__ torch/utils/data/dataloader.py:700",
    "_next_data torch/utils/data/dataloader.py:1400",
    "_get_data torch/utils/data/dataloader.py:1300",
    "_try_get_data torch/utils/data/dataloader.py:1200",
    "Queue.get multiprocessing/queues.py:113",
    "wait multiprocessing/connection.py:948",
)
WORKER = (
    *LOOP,
    "_launch multiprocessing/popen_fork.py:71",
    "BaseProcess._bootstrap multiprocessing/process.py:314",
    "run multiprocessing/process.py:108",
    "_worker_loop torch/utils/data/_utils/worker.py:350",
)
IDLE_WORKER = (
    *WORKER,
    "Queue.get multiprocessing/queues.py:113",
    "_poll multiprocessing/connection.py:440",
)
FETCHING = (*WORKER, "fetch torch/utils/data/_utils/fetch.py:54")
IMPORTING = (
    *ROOT,
    "_find_and_load <frozen importlib._bootstrap>:1176",
    "_load_unlocked <frozen importlib._bootstrap>:690",
    "<module> torch/_dynamo/exc.py:46",
)
COMPILING = (
    *LOOP,
    "compile_wrapper torch/_dynamo/eval_frame.py:700",
    "__call__ torch/_dynamo/convert_frame.py:1400",
    "_compile torch/_dynamo/convert_frame.py:1000",
)
SAVING = (*LOOP, "save torch/serialization.py:900", "_save torch/serialization.py:1200")


def frames(calls: Iterable[str]) -> tuple[Frame, ...]:
    """The frames of a stack, innermost first, as the probe reports them."""
    return tuple(_frame(call) for call in reversed(tuple(calls)))


def _frame(call: str) -> Frame:
    function, _, place = call.partition(" ")
    file, _, line = place.rpartition(":")
    if file in _USER_FILES:
        file = f"{HOME}/{file}"
    elif file.startswith(_LIBRARIES):
        file = f"{SITE}/{file}"
    elif not file.startswith(("<", "/")):
        file = f"{STANDARD}/{file}"
    return Frame(function, file, int(line))


@dataclass(frozen=True)
class ProcessState:
    """One process in one snapshot. `cpu`: CPU seconds that its main thread has used so far."""

    calls: Sequence[str] = ()
    state: str | None = "S"
    syscall: str | None = "futex"
    cpu: float = 10.0
    active: bool | None = False
    gil: bool | None = False
    helpers: Sequence[Sequence[str]] = ()
    holder: Sequence[str] = ()
    """The stack of another thread, which holds the GIL."""
    native: Sequence[str] = ()
    """C functions, innermost first."""
    rested: float | None = None
    """Seconds since its main thread last ran, by the scheduler."""
    others_cpu: float = 0.0
    """CPU seconds that its other threads have used so far."""
    child_cpu: float | None = None
    """CPU seconds that its child process has used so far; None: it has no child."""
    unread: bool = False
    on_device: bool | None = False


@dataclass
class SnapshotSeries:
    """A job in `count` snapshots that are `every` seconds apart."""

    ranks: Mapping[int, Sequence[ProcessState]] = field(default_factory=dict)
    """Rank -> its state in each snapshot; the last one also holds for all later snapshots."""
    workers: Mapping[int, Sequence[ProcessState]] = field(default_factory=dict)
    """Rank -> the states of its data-loader worker."""
    missing: tuple[int, ...] = ()
    world_size: int | None = None
    every: float = 1.0
    count: int = 3

    def snapshots(self) -> tuple[JobSnapshot, ...]:
        return tuple(self._snapshot(at) for at in range(self.count))

    def _snapshot(self, at: int) -> JobSnapshot:
        now = START + at * self.every
        processes, stacks = [], []
        for rank, states in self.ranks.items():
            state = _state_at(states, at)
            processes.append(_process(1000 + rank, rank, state, self._world()))
            stacks += _stacks(1000 + rank, now, state)
            if state.child_cpu is not None:
                child = replace(_process(7000 + rank, rank, state, None), role=Role.OTHER)
                processes.append(replace(child, parent=1000 + rank, cpu_seconds=state.child_cpu))
        for rank, states in self.workers.items():
            state = _state_at(states, at)
            loader = _process(5000 + rank, rank, state, None)
            processes.append(replace(loader, role=Role.LOADER, parent=1000 + rank))
            stacks += _stacks(5000 + rank, now, state)
        return JobSnapshot(
            at=now,
            launcher="torchrun",
            world_size=self._world(),
            processes=tuple(processes),
            stacks=tuple(stacks),
            missing=self.missing,
        )

    def _world(self) -> int:
        return self.world_size or len(self.ranks) + len(self.missing)


def _state_at(states: Sequence[ProcessState], at: int) -> ProcessState:
    return states[min(at, len(states) - 1)]


def _process(pid: int, rank: int, state: ProcessState, world: int | None) -> Process:
    return Process(
        pid=pid,
        parent=1,
        role=Role.RANK,
        state=state.state,
        rank=rank,
        local_rank=rank,
        world_size=world,
        name="python",
        command=("python", "train.py"),
        start_ticks=1,
        cpu_seconds=state.cpu + state.others_cpu,
        wchan=None,
        syscall=state.syscall,
        container=None,
        user=None,
        main_cpu_seconds=state.cpu,
        rested=state.rested,
        on_device=state.on_device,
    )


def _stacks(pid: int, at: float, state: ProcessState) -> list[Stack]:
    if state.unread or state.state in (None, "Z"):
        return []
    threads = [Thread(pid, "MainThread", True, state.active, state.gil, frames(state.calls))]
    threads += [
        Thread(pid + 1, None, False, False, False, frames(helper)) for helper in state.helpers
    ]
    if state.holder:
        threads.append(Thread(pid + 2, "hog", False, False, True, frames(state.holder)))
    stacks = [Stack(pid, at, "py-spy", tuple(threads))]
    if state.native:
        inner = tuple(Frame(name, "libtorch.so", None) for name in state.native)
        main = Thread(pid, "MainThread", True, False, False, (*inner, *frames(state.calls)))
        stacks.append(Stack(pid, at, "py-spy --native", (main,)))
    return stacks


def busy_process(
    calls: Sequence[str], count: int, *, step: float = 0.05, **more: object
) -> list[ProcessState]:
    """A process with the same stack in each snapshot, using `step` CPU seconds between two of
    them."""
    first = ProcessState(calls, **more)  # type: ignore[arg-type]  # keyword arguments of ProcessState
    return [replace(first, cpu=first.cpu + at * step) for at in range(count)]


def blocked_process(*calls: str, **more: object) -> list[ProcessState]:
    """A rank that is blocked in a function called by the training loop."""
    return [ProcessState((*LOOP, *calls), **more)]  # type: ignore[arg-type]  # as above


WAITING_IN_COLLECTIVE = [ProcessState(collective())]
LOCKED = blocked_process("Job.stand train.py:70", "take util.py:31")


def snapshot_series(
    culprits: Mapping[int, Sequence[ProcessState]],
    ranks: int = 4,
    others: Sequence[ProcessState] = WAITING_IN_COLLECTIVE,
) -> SnapshotSeries:
    """A job of `ranks` ranks; those that are not in `culprits` are in the states `others`."""
    return SnapshotSeries({rank: culprits.get(rank, others) for rank in range(ranks)})


def case(snapshots: Sequence[JobSnapshot], ranks: Sequence[Rank] = ()) -> Case:
    """The case of a running job of which only snapshots are known."""
    job = Job(
        id="1",
        command=("torchrun", "train.py"),
        cwd=HOME,
        framework=None,
        strategy=None,
        launcher="torchrun",
        world_size=snapshots[-1].world_size,
        hosts=("node-a",),
        started=None,
        ended=None,
        outcome=Outcome.RUNNING,
        exit_code=None,
        signal=None,
        asked=None,
    )
    return Case(
        Subject("process", "1"), job, snapshots[-1].at, tuple(ranks), job_snapshots=tuple(snapshots)
    )
