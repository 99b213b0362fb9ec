"""Looks at jobs that do not exist: processes that stand, move, wait and die, as a probe sees them.

Stacks are written outermost first, as `function file:line`; `train.py` and its like are the user's
own, all other files a library's.
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
_OURS = ("train.py", "data.py", "util.py", "model.py")
_LIBRARIES = ("torch/", "tensorflow/", "filelock/", "transformers/", "horovod/", "numpy/")

ROOT = ("<module> train.py:90", "main train.py:81")
LOOP = (*ROOT, "Job.train train.py:60")
C10D = "torch/distributed/distributed_c10d.py"
LOGGER = "_exception_logger.<locals>.wrapper torch/distributed/c10d_logger.py:83"


def collective(operation: str = "all_reduce", line: int = 65) -> tuple[str, ...]:
    """A rank that waits in a collective of gloo."""
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
    """Innermost first, as a probe tells them."""
    return tuple(_frame(call) for call in reversed(tuple(calls)))


def _frame(call: str) -> Frame:
    function, _, place = call.partition(" ")
    file, _, line = place.rpartition(":")
    if file in _OURS:
        file = f"{HOME}/{file}"
    elif file.startswith(_LIBRARIES):
        file = f"{SITE}/{file}"
    elif not file.startswith(("<", "/")):
        file = f"{STANDARD}/{file}"
    return Frame(function, file, int(line))


@dataclass(frozen=True)
class Seen:
    """One process in one look. `cpu`: seconds that its main thread has used so far."""

    calls: Sequence[str] = ()
    state: str | None = "S"
    syscall: str | None = "futex"
    cpu: float = 10.0
    active: bool | None = False
    gil: bool | None = False
    helpers: Sequence[Sequence[str]] = ()
    holder: Sequence[str] = ()
    """Another thread, which holds Python's lock."""
    native: Sequence[str] = ()
    """Functions of C, innermost first."""
    rested: float | None = None
    """Seconds since its main thread last ran, as the scheduler tells."""
    others_cpu: float = 0.0
    """Seconds that its other threads have used so far."""
    child_cpu: float | None = None
    """Seconds that a process which it started has used; None: there is none."""
    unread: bool = False
    on_device: bool | None = False


@dataclass
class Scene:
    """A job over several looks, `every` seconds apart."""

    ranks: Mapping[int, Sequence[Seen]] = field(default_factory=dict)
    """Rank -> what is seen look by look; the last holds for all that follow."""
    workers: Mapping[int, Sequence[Seen]] = field(default_factory=dict)
    """Rank -> its data-loader worker."""
    missing: tuple[int, ...] = ()
    world_size: int | None = None
    every: float = 1.0
    count: int = 3

    def snapshots(self) -> tuple[JobSnapshot, ...]:
        return tuple(self._snapshot(at) for at in range(self.count))

    def _snapshot(self, at: int) -> JobSnapshot:
        now = START + at * self.every
        processes, stacks = [], []
        for rank, seen in self.ranks.items():
            one = _nth(seen, at)
            processes.append(_process(1000 + rank, rank, one, self._world()))
            stacks += _stacks(1000 + rank, now, one)
            if one.child_cpu is not None:
                child = replace(_process(7000 + rank, rank, one, None), role=Role.OTHER)
                processes.append(replace(child, parent=1000 + rank, cpu_seconds=one.child_cpu))
        for rank, seen in self.workers.items():
            one = _nth(seen, at)
            loader = _process(5000 + rank, rank, one, None)
            processes.append(replace(loader, role=Role.LOADER, parent=1000 + rank))
            stacks += _stacks(5000 + rank, now, one)
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


def _nth(seen: Sequence[Seen], at: int) -> Seen:
    return seen[min(at, len(seen) - 1)]


def _process(pid: int, rank: int, seen: Seen, world: int | None) -> Process:
    return Process(
        pid=pid,
        parent=1,
        role=Role.RANK,
        state=seen.state,
        rank=rank,
        local_rank=rank,
        world_size=world,
        name="python",
        command=("python", "train.py"),
        start_ticks=1,
        cpu_seconds=seen.cpu + seen.others_cpu,
        wchan=None,
        syscall=seen.syscall,
        container=None,
        user=None,
        main_cpu_seconds=seen.cpu,
        rested=seen.rested,
        on_device=seen.on_device,
    )


def _stacks(pid: int, at: float, seen: Seen) -> list[Stack]:
    if seen.unread or seen.state in (None, "Z"):
        return []
    threads = [Thread(pid, "MainThread", True, seen.active, seen.gil, frames(seen.calls))]
    threads += [
        Thread(pid + 1, None, False, False, False, frames(helper)) for helper in seen.helpers
    ]
    if seen.holder:
        threads.append(Thread(pid + 2, "hog", False, False, True, frames(seen.holder)))
    found = [Stack(pid, at, "py-spy", tuple(threads))]
    if seen.native:
        inner = tuple(Frame(name, "libtorch.so", None) for name in seen.native)
        main = Thread(pid, "MainThread", True, False, False, (*inner, *frames(seen.calls)))
        found.append(Stack(pid, at, "py-spy --native", (main,)))
    return found


def moving(calls: Sequence[str], count: int, *, step: float = 0.05, **more: object) -> list[Seen]:
    """The same stack look after look, with processor time used in between."""
    seen = Seen(calls, **more)  # type: ignore[arg-type]  # keyword arguments of Seen
    return [replace(seen, cpu=seen.cpu + at * step) for at in range(count)]


def stuck(*calls: str, **more: object) -> list[Seen]:
    """A rank that stands below the training loop."""
    return [Seen((*LOOP, *calls), **more)]  # type: ignore[arg-type]  # keyword arguments of Seen


WAITS = [Seen(collective())]
LOCKED = stuck("Job.stand train.py:70", "take util.py:31")


def scene(
    culprits: Mapping[int, Sequence[Seen]], ranks: int = 4, others: Sequence[Seen] = WAITS
) -> Scene:
    """Some ranks as told, all others waiting."""
    return Scene({rank: culprits.get(rank, others) for rank in range(ranks)})


def case(snapshots: Sequence[JobSnapshot], ranks: Sequence[Rank] = ()) -> Case:
    """The case of a running job of which only looks are known."""
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
