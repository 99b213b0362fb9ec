"""What the data loader reports of its workers."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_TRY_WITHOUT = (
    "Run once with `num_workers=0`: the error then shows its own traceback. Few or no workers also "
    "show whether memory is the cause."
)
_PICKLE = (
    "Open files, locks, database handles and generators inside the worker (in `__getitem__` or "
    "`worker_init_fn`), use a named function at module level instead of a lambda, or "
    "`multiprocessing_context='fork'`."
)

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="loader-worker-killed",
        code="failed-dataloader-worker",
        role=Role.CAUSE,
        needle=" is killed by signal: Killed",
        pattern=r"DataLoader (?:worker|process) \(pid {1,3}(?P<pid>\d+)\) (?:exited )?is killed "
        r"by signal: (?P<signal>Killed)",
        meaning="A data-loader worker (pid {pid}) was killed by SIGKILL: nearly always the host's "
        "or the container's memory ran out.",
        fix="Use fewer workers, a smaller `prefetch_factor` and no Python lists of objects in the "
        "data set (each worker copies them); `dmesg -T | grep -i oom` confirms it.",
        example="RuntimeError: DataLoader worker (pid 16638) is killed by signal: Killed. ",
        origin="made: a worker that sends itself SIGKILL, torch 2.13",
        more_heads=("RuntimeError: DataLoader worker (pid ",),
    ),
    Signature(
        id="loader-worker-crashed",
        code="failed-dataloader-worker",
        role=Role.CAUSE,
        needle=") is killed by signal: ",
        pattern=r"DataLoader worker \(pid (?P<pid>\d+)\) is killed by signal: (?P<signal>"
        r"(?!Killed|Terminated|Bus|Interrupt|Hangup)[A-Z][\w ]{2,40}?)\.",
        meaning="A data-loader worker (pid {pid}) crashed ({signal}): a bug in native code that "
        "the data set calls (decoder, OpenCV, HDF5, …).",
        fix=_TRY_WITHOUT + " `PYTHONFAULTHANDLER=1` shows the worker's line; "
        "`cv2.setNumThreads(0)` helps where OpenCV is used.",
        example="RuntimeError: DataLoader worker (pid 16647) is killed by signal: Segmentation "
        "fault. ",
        origin="made: a worker that sends itself SIGSEGV, torch 2.13",
        needle_tells=False,
    ),
    Signature(
        id="loader-worker-terminated",
        code="failed-dataloader-worker",
        role=Role.SYMPTOM,
        needle=") is killed by signal: Terminated",
        pattern=r"DataLoader worker \(pid (?P<pid>\d+)\) is killed by signal: "
        r"(?P<signal>Terminated)",
        meaning="A data-loader worker (pid {pid}) was asked to end, as happens when the whole job "
        "is ended.",
        fix="Look for who ended the job: another rank's error, the scheduler, or a person.",
        example="RuntimeError: DataLoader worker (pid 16674) is killed by signal: Terminated. ",
        origin="made: a worker that sends itself SIGTERM, torch 2.13",
        weight=0.4,
    ),
    Signature(
        id="loader-worker-bus-error",
        code="shm-exhausted",
        role=Role.CAUSE,
        needle="Unexpected bus error encountered in worker",
        pattern=r"Unexpected bus error encountered in worker\. This might be caused by "
        r"insufficient shared memory",
        meaning="A data-loader worker got a bus error: /dev/shm, where batches are handed over, "
        "is full.",
        fix="Make /dev/shm larger (`docker run --shm-size=16g` or `--ipc=host`; in Kubernetes an "
        "`emptyDir` with `medium: Memory` on /dev/shm), or use fewer workers and a smaller "
        "`prefetch_factor`.",
        example="ERROR: Unexpected bus error encountered in worker. This might be caused by "
        "insufficient shared memory (shm).",
        origin="made: a worker that sends itself SIGBUS, torch 2.13",
    ),
    Signature(
        id="loader-worker-bus-signal",
        code="shm-exhausted",
        role=Role.CAUSE,
        needle=") is killed by signal: Bus error",
        pattern=r"DataLoader worker \(pid (?P<pid>\d+)\) is killed by signal: (?P<signal>Bus "
        r"error)",
        meaning="A data-loader worker (pid {pid}) got a bus error: /dev/shm, where batches are "
        "handed over, is full.",
        fix="Make /dev/shm larger (`docker run --shm-size=16g` or `--ipc=host`), or use fewer "
        "workers and a smaller `prefetch_factor`.",
        example="RuntimeError: DataLoader worker (pid 97) is killed by signal: Bus error. It is "
        "possible that dataloader's workers are out of shared memory. Please try to raise your "
        "shared memory limit.",
        origin="source: torch/csrc/DataLoader.cpp of torch 2.13",
        more_heads=("workers are out of shared memory",),
    ),
    Signature(
        id="loader-worker-gone",
        code="failed-dataloader-worker",
        role=Role.CAUSE,
        needle=") exited unexpectedly",
        pattern=r"DataLoader worker \(pid\(s\) (?P<pid>[\d, ]{1,200})\) exited unexpectedly",
        meaning="Data-loader workers (pid {pid}) ended without saying why: killed, crashed, or "
        "ended by `os._exit`.",
        fix=_TRY_WITHOUT,
        example="RuntimeError: DataLoader worker (pid(s) 16683) exited unexpectedly",
        origin="made: a worker that calls os._exit(1), torch 2.13",
        weight=0.8,
    ),
    Signature(
        id="loader-worker-raised",
        code="failed-dataloader-worker",
        role=Role.CAUSE,
        needle=" in DataLoader worker process ",
        pattern=r"^(?P<type>[\w.]{1,200}): Caught (?P<inner>\w{1,100}) in DataLoader worker "
        r"process (?P<worker>\d+)\.",
        meaning="The data set raised {inner} in worker {worker}; the traceback that follows names "
        "the line.",
        fix="Fix the line that `Original Traceback` ends with, or skip bad samples there; "
        "`num_workers=0` shows it without the detour.",
        example="KeyError: Caught KeyError in DataLoader worker process 1.",
        origin="made: a data set that raises for one sample, torch 2.13",
        weight=0.85,
        wrapper=True,
    ),
    Signature(
        id="pin-thread-raised",
        code="failed-exception",
        role=Role.CAUSE,
        needle=" in pin memory thread for device ",
        pattern=r"^(?P<type>[\w.]{1,200}): Caught (?P<inner>\w{1,100}) in pin memory thread for "
        r"device (?P<device>\S{1,20}?)\.?$",
        meaning="Pinning a batch for device {device} raised {inner}.",
        fix="Read the traceback that follows. If it is a CUDA error, `CUDA_LAUNCH_BLOCKING=1` "
        "shows its origin; `pin_memory=False` shows whether pinning is the cause.",
        example="RuntimeError: Caught RuntimeError in pin memory thread for device 0.",
        origin="source: torch/utils/data/_utils/pin_memory.py of torch 2.13",
        wrapper=True,
    ),
    Signature(
        id="pin-thread-gone",
        code="failed-dataloader-worker",
        role=Role.SYMPTOM,
        needle="Pin memory thread exited unexpectedly",
        pattern=r"Pin memory thread exited unexpectedly",
        meaning="The thread that pins batches ended before this: a worker's connection broke or "
        "file descriptors ran out.",
        fix="Look for an error of a worker above it (often `Too many open files`).",
        example="RuntimeError: Pin memory thread exited unexpectedly",
        origin="source: torch/utils/data/dataloader.py of torch 2.13",
        weight=0.6,
    ),
    Signature(
        id="loader-timeout",
        code="failed-dataloader-worker",
        role=Role.CAUSE,
        needle="DataLoader timed out after",
        pattern=r"DataLoader timed out after (?P<seconds>[\d.]+) seconds",
        meaning="The workers delivered no batch within {seconds} s: a worker hangs (a lock taken "
        "over by fork, storage that does not answer) or is far too slow.",
        fix="See with `mgpu-doctor diagnose PID` where the workers are blocked. Open HDF5, LMDB "
        "and database handles inside the worker, or try `multiprocessing_context='forkserver'`.",
        example="RuntimeError: DataLoader timed out after 2 seconds",
        origin="made: a sample that sleeps, timeout=2, torch 2.13",
    ),
    Signature(
        id="loader-open-files",
        code="failed-open-files",
        role=Role.CAUSE,
        needle="Too many open files. Communication with the workers",
        pattern=r"Too many open files\. Communication with the workers is no longer possible",
        meaning="The process ran out of file descriptors: tensors handed over by workers take one "
        "each while they are kept.",
        fix="Raise the limit with `ulimit -n 65536` before the start, or call "
        "`torch.multiprocessing.set_sharing_strategy('file_system')`; copy what you keep from a "
        "batch (`x.clone()`).",
        example="RuntimeError: Too many open files. Communication with the workers is no longer "
        "possible. Please increase the limit using `ulimit -n` in the shell or change the sharing "
        "strategy by calling `torch.multiprocessing.set_sharing_strategy('file_system')` at the "
        "beginning of your code",
        origin="made: batches kept under `ulimit -n 60`, torch 2.13",
    ),
    Signature(
        id="loader-ancdata",
        code="failed-open-files",
        role=Role.CAUSE,
        needle=" items of ancdata",
        pattern=r"RuntimeError: received 0 items of ancdata",
        meaning="A worker's tensor could not be handed over, because the process ran out of file "
        "descriptors.",
        fix="Raise the limit with `ulimit -n 65536` before the start, or call "
        "`torch.multiprocessing.set_sharing_strategy('file_system')`.",
        example="RuntimeError: received 0 items of ancdata",
        origin="source: Lib/multiprocessing/reduction.py of CPython 3.11",
    ),
    Signature(
        id="loader-pickle-warning",
        code="failed-spawn-pickling",
        role=Role.CAUSE,
        needle="Got pickle error when attempting to start a worker Process",
        pattern=r"Got pickle error when attempting to start a worker Process",
        meaning="The data set (or its `collate_fn`) cannot be handed to a worker that is started "
        "by spawn or forkserver.",
        fix=_PICKLE,
        example="UserWarning: Got pickle error when attempting to start a worker Process. This "
        "might be because the worker Process arguments are not picklable. Python 3.14+ changed "
        "the multiprocessing start method in non-Mac POSIX platforms to 'forkserver', which "
        "requires the worker Process arguments to be picklable.",
        origin="made: a data set that holds a lambda, multiprocessing_context='spawn', torch 2.13",
    ),
    Signature(
        id="loader-too-many-workers",
        code="cpu-oversubscribed",
        role=Role.CAUSE,
        needle="Our suggested max number of worker in current system is",
        pattern=r"This DataLoader will create (?P<workers>\d+) worker processes in total\. Our "
        r"suggested max number of worker in current system is (?P<cpus>\d+)",
        meaning="Each loader starts {workers} workers, and this process may use {cpus} CPU cores.",
        fix="Set `num_workers` so that ranks × workers stays below the cores, or give the job "
        "more cores (`--cpus-per-task`, a larger CPU limit).",
        example="UserWarning: This DataLoader will create 64 worker processes in total. Our "
        "suggested max number of worker in current system is 2, which is smaller than what this "
        "DataLoader is going to create.",
        origin="made: num_workers=64 on two cores, torch 2.13",
        severity="info",
        weight=0.7,
    ),
    Signature(
        id="loader-empty",
        code="failed-exception",
        role=Role.CAUSE,
        needle="num_samples should be a positive integer value",
        pattern=r"num_samples should be a positive integer value, but got num_samples=0",
        meaning="The data set is empty on this rank.",
        fix="Check the path and the filter of the data set, and that a split by rank leaves "
        "something for each.",
        example="ValueError: num_samples should be a positive integer value, but got num_samples=0",
        origin="made: a shuffled loader over an empty data set, torch 2.13",
    ),
)
