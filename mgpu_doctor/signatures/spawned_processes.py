"""Processes that multiprocessing cannot start, or that die: pickling, main guard, CUDA."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_MAIN_GUARD = (
    'Put what starts the processes under `if __name__ == "__main__":` and keep only definitions '
    "and imports outside it."
)
_MODULE_LEVEL = (
    "Move it to module level and pass plain data; open files, locks and connections inside the "
    "process that uses them."
)
_PICKLE = (
    "Define functions and classes at the top of a module; open files and connections inside the "
    "new process."
)
_STACK = (
    "Run with PYTHONFAULTHANDLER=1 to get the Python stack of the crash, and `ulimit -c "
    "unlimited` to keep a core file for gdb."
)

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="main-guard-missing",
        code="failed-main-guard",
        role=Role.CAUSE,
        needle="An attempt has been made to start a new process",
        pattern=r"An attempt has been made to start a new process before the",
        meaning="The script starts processes while it is imported: each child ran the whole "
        "script again.",
        fix=_MAIN_GUARD,
        example="        An attempt has been made to start a new process before the",
        origin="made: torch.multiprocessing.spawn in a script without a main guard, CPython 3.11",
        more_heads=("An attempt has been made to start a new",),
    ),
    Signature(
        id="pickle-local-object",
        code="failed-spawn-pickling",
        role=Role.CAUSE,
        needle="pickle local object",
        pattern=r"(?:AttributeError|PicklingError): Can't (?:pickle|get) local object '?"
        r"(?P<object>[^'\s]{1,200})",
        meaning="{object} is defined inside a function, so it cannot be handed to another process.",
        fix=_MODULE_LEVEL,
        example="AttributeError: Can't pickle local object 'main.<locals>.<lambda>'",
        origin="made: a data set that holds a lambda, spawned workers, torch 2.13",
        needle_tells=False,
    ),
    Signature(
        id="pickle-lambda",
        code="failed-spawn-pickling",
        role=Role.CAUSE,
        needle="Can't pickle <",
        pattern=r"Can't pickle <(?:function|class|module|built-in \w+|bound method) "
        r"(?P<object>[^:\s]{1,200}?)>?(?: at 0x\w{1,20}>)?: (?:attribute lookup|it's not|import "
        r"of)",
        meaning="A function or class ({object}) has no name that another process could import, so "
        "it cannot be handed over.",
        fix=_MODULE_LEVEL,
        example="_pickle.PicklingError: Can't pickle <function <lambda> at 0x7fb1b679d580>: "
        "attribute lookup <lambda> on __main__ failed",
        origin="made: torch.multiprocessing.spawn of a lambda, torch 2.13",
    ),
    Signature(
        id="pickle-handle",
        code="failed-spawn-pickling",
        role=Role.CAUSE,
        needle="TypeError: cannot pickle '",
        pattern=r"TypeError: cannot pickle '(?P<object>[\w.]{1,100})' object",
        meaning="A {object} (an open file, lock, socket or generator) cannot be handed to another "
        "process.",
        fix=_MODULE_LEVEL,
        example="TypeError: cannot pickle '_io.TextIOWrapper' object",
        origin="made: torch.multiprocessing.spawn with an open file as argument, torch 2.13",
    ),
    Signature(
        id="tensor-with-graph",
        code="failed-spawn-pickling",
        role=Role.CAUSE,
        needle="refusing to serialize non-leaf tensor",
        pattern=r"Cowardly refusing to serialize non-leaf tensor which requires_grad",
        meaning="A tensor with its graph was to be handed to another process (through a queue, by "
        "spawn or from a data-loader worker).",
        fix="Send `x.detach()` instead; in data sets do the work under `torch.no_grad()`.",
        example="RuntimeError: Cowardly refusing to serialize non-leaf tensor which "
        "requires_grad, since autograd does not support crossing process boundaries.",
        origin="made: a computed tensor pickled for another process, torch 2.13",
    ),
    Signature(
        id="spawned-name-missing",
        code="failed-main-guard",
        role=Role.CAUSE,
        needle="on <module '__mp_main__'",
        pattern=r"AttributeError: Can't get attribute '(?P<object>[\w.]{1,100})' on <module "
        r"'__mp_main__'",
        meaning="The child imports the script again and does not find {object}: it is defined "
        'under `if __name__ == "__main__":`, or in a notebook.',
        fix="Define {object} at module level, outside the main guard. From a notebook, put it in "
        "a file that is imported.",
        example="AttributeError: Can't get attribute 'w' on <module '__mp_main__' from "
        "'/home/user/train.py'>",
        origin="made: a spawned function that is defined under the main guard, CPython 3.11",
    ),
    Signature(
        id="start-method-twice",
        code="failed-main-guard",
        role=Role.CAUSE,
        needle="context has already been set",
        pattern=r"RuntimeError: context has already been set",
        meaning="`set_start_method` ran twice: also when a spawned child imports a script without "
        "a main guard.",
        fix=_MAIN_GUARD + " Or use `multiprocessing.get_context('spawn')` in place of the global "
        "setting.",
        example="RuntimeError: context has already been set",
        origin="made: set_start_method in a script without a main guard, CPython 3.11",
        weight=0.7,
        needle_tells=False,
    ),
    Signature(
        id="cuda-in-forked-process",
        code="failed-exception",
        role=Role.CAUSE,
        needle="Cannot re-initialize CUDA in forked subprocess",
        pattern=r"Cannot re-initialize CUDA in forked subprocess",
        meaning="CUDA was used before the process forked, and a forked child cannot use it.",
        fix="Start the processes by spawn (`torch.multiprocessing.set_start_method('spawn')`, "
        "`DataLoader(..., multiprocessing_context='spawn')`), or keep CUDA out of the data set "
        "and of whatever runs before the fork.",
        example="RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with "
        "multiprocessing, you must use the 'spawn' start method",
        origin="source: torch/cuda/__init__.py of torch 2.13",
    ),
    Signature(
        id="spawned-process-killed",
        code="failed-killed",
        role=Role.SYMPTOM,
        needle=" terminated with signal SIG",
        pattern=r"ProcessExitedException: process (?P<rank>\d+) terminated with signal "
        r"(?P<signal>SIGKILL|SIGTERM|SIGHUP|SIGINT)",
        meaning="Spawned process {rank} was ended by {signal} from outside.",
        fix="Find out who sent it. `dmesg -T | grep -iE 'out of memory|killed process'` on that "
        "host names the OOM killer's victims; otherwise ask the scheduler (`sacct`, `kubectl "
        "describe pod`).",
        example="torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with "
        "signal SIGKILL",
        origin="made: a process of torch.multiprocessing.spawn that was killed, torch 2.13",
        weight=0.6,
        needle_tells=False,
    ),
    Signature(
        id="spawned-process-crashed",
        code="failed-signal",
        role=Role.SYMPTOM,
        needle=" terminated with signal SIG",
        pattern=r"ProcessExitedException: process (?P<rank>\d+) terminated with signal "
        r"(?P<signal>SIGSEGV|SIGABRT|SIGBUS|SIGFPE|SIGILL|SIGSYS)",
        meaning="Spawned process {rank} crashed with {signal}.",
        fix="Run it again with `PYTHONFAULTHANDLER=1`: the process that crashes prints its Python "
        "stack.",
        example="torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with "
        "signal SIGSEGV",
        origin="source: torch/multiprocessing/spawn.py of torch 2.13",
        weight=0.6,
        needle_tells=False,
    ),
    Signature(
        id="main-guard-frame",
        code="failed-main-guard",
        role=Role.CAUSE,
        needle="_check_not_importing_main",
        pattern=r'^\s{0,8}File ".{1,300}spawn\.py", line \d{1,6}, in _check_not_importing_main|'
        r"^\s{1,16}_check_not_importing_main\(\)",
        meaning="The script starts processes while it is imported: each child ran the whole "
        "script again.",
        fix=_MAIN_GUARD,
        example='  File "/usr/lib/python3.11/multiprocessing/spawn.py", line 158, in '
        "_check_not_importing_main",
        origin="made: torch.multiprocessing.spawn in a script without a main guard, CPython 3.11",
        weight=0.85,
        needle_tells=False,
    ),
    Signature(
        id="spawned-process-exited",
        code="failed-exception",
        role=Role.SYMPTOM,
        needle=" terminated with exit code ",
        pattern=r"^(?:[\w.]{1,60}ProcessExitedException: |Exception: )?process (?P<rank>\d{1,6}) "
        r"terminated with exit code (?P<exitcode>[1-9]\d{0,2})\b",
        meaning="Process {rank} of `torch.multiprocessing.spawn` ended with exit code {exitcode}.",
        fix="Look for the first error of that process, above this line or in its own log.",
        example="torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with "
        "exit code 1",
        origin="source: torch/multiprocessing/spawn.py of torch 2.13",
        weight=0.5,
        needle_tells=False,
        wrapper=True,
    ),
    Signature(
        id="pickle-handle-old",
        code="failed-spawn-pickling",
        role=Role.CAUSE,
        needle="TypeError: can't pickle ",
        pattern=r"TypeError: can't pickle (?P<object>[\w.]{1,100}) objects",
        meaning="A {object} (an open file, lock, socket or generator) cannot be handed to another "
        "process.",
        fix=_MODULE_LEVEL,
        example="TypeError: can't pickle _thread.lock objects",
        origin="recalled: Objects/typeobject.c of CPython 3.7",
    ),
    Signature(
        id="pickle-too-large",
        code="failed-spawn-pickling",
        role=Role.CAUSE,
        needle="cannot serialize a bytes object larger than",
        pattern=r"cannot serialize a (?:bytes|string) object larger than 4 ?GiB",
        meaning="An object that a new process needs is larger than 4 GiB.",
        fix="Let each process load its data itself, or put it into shared memory.",
        example="OverflowError: cannot serialize a bytes object larger than 4 GiB",
        origin="recalled: Modules/_pickle.c of Python 3.8",
    ),
    Signature(
        id="pickle-get-local-object",
        code="failed-spawn-pickling",
        role=Role.CAUSE,
        needle="Can't get local object '",
        pattern=r"Can't get local object '(?P<name>[^']{1,200})'",
        meaning="A new process needs {name}, which is defined inside a function and cannot be "
        "pickled.",
        fix=_PICKLE,
        example="AttributeError: Can't get local object 'main.<locals>.<lambda>'",
        origin="made: Process(target=lambda: 0).start() under spawn, Python 3.13",
    ),
    Signature(
        id="pickle-hdf5",
        code="failed-spawn-pickling",
        role=Role.CAUSE,
        needle="h5py objects cannot be pickled",
        pattern=r"h5py objects cannot be pickled",
        meaning="A data set holds an open HDF5 file, which data-loader workers cannot get.",
        fix="Open the file in `__getitem__`, once per worker.",
        example="TypeError: h5py objects cannot be pickled",
        origin="recalled: h5py 3",
    ),
    Signature(
        id="spawned-process-crashed-old",
        code="failed-signal",
        role=Role.SYMPTOM,
        needle="Exception: process ",
        pattern=r"^Exception: process (?P<child>\d{1,7}) terminated with signal (?P<name>SIG"
        r"(?:SEGV|ABRT|BUS|ILL|FPE))",
        meaning="Process {child} of mp.spawn crashed with {name}.",
        fix=_STACK,
        example="Exception: process 1 terminated with signal SIGSEGV",
        origin="recalled: torch/multiprocessing/spawn.py of torch 1.4",
        weight=0.6,
    ),
    Signature(
        id="spawned-process-killed-old",
        code="failed-killed",
        role=Role.SYMPTOM,
        needle="Exception: process ",
        pattern=r"^Exception: process (?P<child>\d{1,7}) terminated with signal SIGKILL",
        meaning="Process {child} of mp.spawn was killed: usually by the kernel when memory ran "
        "out.",
        fix="`dmesg -T | grep -i 'killed process'`; `sacct -j JOB -o State,MaxRSS` under Slurm.",
        example="Exception: process 3 terminated with signal SIGKILL",
        origin="recalled: torch/multiprocessing/spawn.py of torch 1.4",
        weight=0.6,
    ),
    Signature(
        id="process-pool-broken",
        code="failed-killed",
        role=Role.SYMPTOM,
        needle="BrokenProcessPool: A process in the process pool",
        pattern=r"BrokenProcessPool: A process in the process pool was terminated abruptly",
        meaning="A worker of a process pool ended without an exception: usually it was killed when "
        "memory ran out.",
        fix="`dmesg -T | grep -i 'killed process'`; use fewer workers.",
        example="concurrent.futures.process.BrokenProcessPool: A process in the process pool was "
        "terminated abruptly while the future was running or pending.",
        origin="source: concurrent/futures/process.py of CPython 3.11",
        weight=0.6,
    ),
    Signature(
        id="process-pool-worker-gone",
        code="failed-killed",
        role=Role.SYMPTOM,
        needle="managed by the executor was unexpectedly terminated",
        pattern=r"A worker process managed by the executor was unexpectedly terminated",
        meaning="A worker process of joblib died: usually it was killed when memory ran out, "
        "otherwise it crashed.",
        fix="Use fewer workers (`n_jobs`), and look for `Out of memory` in `dmesg`.",
        example="joblib.externals.loky.process_executor.TerminatedWorkerError: A worker process "
        "managed by the executor was unexpectedly terminated.",
        origin="recalled: joblib/externals/loky/process_executor.py of joblib 1.2",
        weight=0.5,
    ),
    Signature(
        id="cuda-initialisation-error",
        code="failed-exception",
        role=Role.CAUSE,
        needle=" error: initialization error",
        pattern=r"(?:CUDA|HIP) error: initialization error",
        meaning="CUDA cannot start in this process. The most common cause: it was used before the "
        "processes were forked, and a child cannot use the parent's context.",
        fix="Start the processes with `spawn`, and touch no GPU (`torch.cuda…`, `.cuda()`) before "
        "that, also not in earlier notebook cells.",
        example="RuntimeError: CUDA error: initialization error",
        origin="recalled: driver_types.h of CUDA 12",
        weight=0.75,
    ),
    Signature(
        id="notebook-used-cuda",
        code="failed-exception",
        role=Role.CAUSE,
        needle="To launch a multi-GPU training from your notebook",
        pattern=r"ValueError: To launch a multi-GPU training from your notebook, you need to ",
        meaning="The notebook used CUDA before it forked the training processes, so they cannot "
        "use it.",
        fix="Restart the kernel; let no cell before `notebook_launcher` use `torch.cuda` or build "
        "an `Accelerator`.",
        example="ValueError: To launch a multi-GPU training from your notebook, you need to avoid "
        "running any instruction",
        origin="source: accelerate/launchers.py of accelerate 0.30",
    ),
)
