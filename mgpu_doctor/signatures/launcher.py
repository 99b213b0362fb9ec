"""What torchrun prints of its workers' ends, and of being ended itself."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_CHILD = r"failed \(exitcode: -{numbers}\) local_rank: (?P<local_rank>\d+) \(pid: (?P<pid>\d+)\)"
_CRASH = (
    "Run it again with `PYTHONFAULTHANDLER=1`: the process that crashes prints its Python stack; "
    "`ulimit -c unlimited` and gdb show the native one."
)

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="torchrun-child-killed",
        code="failed-killed",
        role=Role.SYMPTOM,
        needle="failed (exitcode: -9)",
        pattern=_CHILD.format(numbers="9"),
        meaning="The worker with local rank {local_rank} (pid {pid}) was killed by SIGKILL: "
        "usually by the kernel when memory ran out, otherwise by the scheduler or a person.",
        fix="Find out who sent it. `dmesg -T | grep -iE 'out of memory|killed process'` on that "
        "host names the OOM killer's victims; otherwise ask the scheduler (`sacct`, `kubectl "
        "describe pod`).",
        example="E1121 19:02:10.309000 19348 "
        "torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9) local_rank: "
        "1 (pid: 19405) of binary: /usr/bin/python3",
        origin="made: torchrun with a worker that sends itself SIGKILL, torch 2.13",
        weight=0.6,
    ),
    Signature(
        id="torchrun-child-bus-error",
        code="failed-signal",
        role=Role.SYMPTOM,
        needle="failed (exitcode: -7)",
        pattern=_CHILD.format(numbers="7"),
        meaning="The worker with local rank {local_rank} (pid {pid}) got a bus error, as when "
        "/dev/shm is full or a mapped file was cut short.",
        fix="Make room in /dev/shm (`df -h /dev/shm`; in Docker start with "
        "`--shm-size=16g`). " + _CRASH,
        example="E1121 19:02:16.569000 19453 "
        "torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -7) local_rank: "
        "1 (pid: 19496) of binary: /usr/bin/python3",
        origin="made: torchrun with a worker that sends itself SIGBUS, torch 2.13",
        weight=0.6,
    ),
    Signature(
        id="torchrun-child-crashed",
        code="failed-signal",
        role=Role.SYMPTOM,
        needle="failed (exitcode: -",
        pattern=_CHILD.format(numbers="(?P<signal>4|6|8|11)"),
        meaning="The worker with local rank {local_rank} (pid {pid}) crashed with signal "
        "{signal}. 4 is an illegal instruction, 6 an abort of its own, 8 arithmetic and 11 a bad "
        "memory access.",
        fix="Look for `terminate called`, an assertion or NCCL's watchdog above it if the signal "
        "is 6. " + _CRASH,
        example="E1121 19:02:10.309000 19348 "
        "torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -6) local_rank: "
        "1 (pid: 19405) of binary: /usr/bin/python3",
        origin="made: torchrun with a worker that calls os.abort(), torch 2.13",
        weight=0.6,
    ),
    Signature(
        id="torchrun-asked-to-end",
        code="failed-killed",
        role=Role.SYMPTOM,
        needle=" death signal, shutting down workers",
        pattern=r"Received (?P<signal>15) death signal, shutting down workers",
        meaning="Somebody asked torchrun to end (SIGTERM): the scheduler at a limit or "
        "preemption, a container that was stopped, or a person.",
        fix="Ask the scheduler why: `sacct -j JOB --format=State,ExitCode,Elapsed,Timelimit`, "
        "`kubectl describe pod`.",
        example="W1121 19:02:29.512000 19541 torch/distributed/elastic/agent/server/api.py:753] "
        "Received 15 death signal, shutting down workers",
        origin="made: torchrun that was sent SIGTERM, torch 2.13",
        weight=0.7,
        needle_tells=False,
    ),
    Signature(
        id="torchrun-asked-to-end-old",
        code="failed-killed",
        role=Role.SYMPTOM,
        needle=" death signal, shutting down workers",
        pattern=r"Received Signals\.SIGTERM death signal, shutting down workers",
        meaning="Somebody asked torchrun to end (SIGTERM): the scheduler at a limit or "
        "preemption, a container that was stopped, or a person.",
        fix="Ask the scheduler why: `sacct -j JOB --format=State,ExitCode,Elapsed,Timelimit`, "
        "`kubectl describe pod`.",
        example="WARNING:torch.distributed.elastic.agent.server.api:Received Signals.SIGTERM "
        "death signal, shutting down workers",
        origin="source: torch/distributed/elastic/agent/server/api.py of torch 2.1, Python 3.10",
        weight=0.7,
        needle_tells=False,
    ),
    Signature(
        id="torchrun-hangup",
        code="failed-hangup",
        role=Role.CAUSE,
        needle=" death signal, shutting down workers",
        pattern=r"Received (?:1|Signals\.SIGHUP) death signal, shutting down workers",
        meaning="The terminal that torchrun was started from was closed (SIGHUP), as when an SSH "
        "connection drops.",
        fix="Start it inside `tmux` or `screen`, with `nohup … &`, or as a job of the scheduler.",
        example="W1121 19:02:36.419000 19616 torch/distributed/elastic/agent/server/api.py:753] "
        "Received 1 death signal, shutting down workers",
        origin="made: torchrun that was sent SIGHUP, torch 2.13",
        needle_tells=False,
    ),
    Signature(
        id="torchrun-passes-hangup",
        code="failed-hangup",
        role=Role.CAUSE,
        needle=" closing signal SIGHUP",
        pattern=r"Sending process \d{1,10} closing signal SIGHUP",
        meaning="torchrun passed SIGHUP on to its ranks: the terminal that it was started from was "
        "closed, as when an SSH connection drops.",
        fix="Start it inside `tmux` or `screen`, with `nohup … &`, or as a job of the scheduler.",
        example="WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 471 closing "
        "signal SIGHUP",
        origin="source: torch/distributed/elastic/multiprocessing/api.py of torch 2.13",
        needle_tells=False,
    ),
    Signature(
        id="torchrun-interrupted",
        code="failed-interrupted",
        role=Role.CAUSE,
        needle=" death signal, shutting down workers",
        pattern=r"Received (?:2|Signals\.SIGINT) death signal, shutting down workers",
        meaning="Somebody interrupted the job (Ctrl-C, SIGINT).",
        fix="Nothing to fix if that was meant.",
        example="W1121 19:02:43.047000 19633 torch/distributed/elastic/agent/server/api.py:753] "
        "Received 2 death signal, shutting down workers",
        origin="made: torchrun that was sent SIGINT, torch 2.13",
        severity="info",
    ),
    Signature(
        id="torchrun-passes-interrupt",
        code="failed-interrupted",
        role=Role.CAUSE,
        needle=" closing signal SIGINT",
        pattern=r"Sending process \d{1,10} closing signal SIGINT",
        meaning="Somebody interrupted the job (Ctrl-C, SIGINT), and torchrun passed it on to its "
        "ranks.",
        fix="Nothing to fix if that was meant.",
        example="WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 471 closing "
        "signal SIGINT",
        origin="source: torch/distributed/elastic/multiprocessing/api.py of torch 2.13",
        severity="info",
        needle_tells=False,
    ),
    Signature(
        id="keyboard-interrupt",
        code="failed-interrupted",
        role=Role.CAUSE,
        needle="KeyboardInterrupt",
        pattern=r"^KeyboardInterrupt\s*$",
        meaning="Somebody interrupted the process (Ctrl-C, SIGINT).",
        fix="Nothing to fix if that was meant; the traceback above shows where it was then.",
        example="KeyboardInterrupt",
        origin="made: torchrun's workers that were sent SIGINT, torch 2.13",
        severity="info",
        weight=0.6,
    ),
    Signature(
        id="torchrun-without-gpu",
        code="failed-visible-devices",
        role=Role.CAUSE,
        needle="ValueError: Cuda is not available",
        pattern=r"^ValueError: Cuda is not available\.",
        meaning="`torchrun --nproc-per-node=gpu` found no usable GPU on this host.",
        fix="Check `nvidia-smi` and `torch.cuda.is_available()` on this host, "
        "CUDA_VISIBLE_DEVICES, and that torch is built for CUDA.",
        example="ValueError: Cuda is not available.",
        origin="made: torchrun --nproc-per-node gpu on a machine without one, torch 2.13",
    ),
    Signature(
        id="torchrun-report-killed",
        code="failed-killed",
        role=Role.SYMPTOM,
        needle="(SIGKILL) received by PID",
        pattern=r"Signal 9 \(SIGKILL\) received by PID (?P<pid>\d+)",
        meaning="Process {pid} was killed with SIGKILL.",
        fix="Look for the OOM killer in `dmesg` of its host, and in the scheduler's log.",
        example="  traceback : Signal 9 (SIGKILL) received by PID 31007",
        origin="source: torch/distributed/elastic/multiprocessing/errors of torch 2.13",
        weight=0.6,
    ),
    Signature(
        id="torchrun-report-crashed",
        code="failed-signal",
        role=Role.SYMPTOM,
        needle=") received by PID ",
        pattern=r"Signal \d{1,2} \((?P<signal>SIG(?:ABRT|BUS|FPE|ILL|SEGV))\) received by PID "
        r"(?P<pid>\d+)",
        meaning="Process {pid} crashed with {signal}.",
        fix=_CRASH,
        example="  traceback : Signal 11 (SIGSEGV) received by PID 31008",
        origin="source: torch/distributed/elastic/multiprocessing/errors of torch 2.13",
        weight=0.6,
        needle_tells=False,
    ),
    Signature(
        id="lightning-deadlock",
        code="hang-rank-behind",
        role=Role.SYMPTOM,
        needle="DeadlockDetectedException: DeadLock detected",
        pattern=r"DeadlockDetectedException: DeadLock detected from rank: (?P<rank>\d{1,6})",
        meaning="Lightning ended the job: rank {rank} failed while the others waited for it.",
        fix="Look for the first error of rank {rank} above.",
        example="DeadlockDetectedException: DeadLock detected from rank: 1",
        origin="recalled: strategies/ddp.py of Lightning 1.8",
        weight=0.6,
    ),
    Signature(
        id="launcher-signal-term",
        code="failed-killed",
        role=Role.SYMPTOM,
        needle="SignalException: Process ",
        pattern=r"SignalException: Process \d{1,10} got signal: 15\b",
        meaning="torchrun was asked to end with SIGTERM.",
        fix="Ask the scheduler who sent it (`sacct`, `kubectl describe pod`).",
        example="torch.distributed.elastic.multiprocessing.api.SignalException: Process 4711 got "
        "signal: 15",
        origin="source: torch/distributed/elastic/multiprocessing/api.py of torch 2.13",
        weight=0.4,
    ),
    Signature(
        id="launcher-signal-hangup",
        code="failed-hangup",
        role=Role.CAUSE,
        needle="SignalException: Process ",
        pattern=r"SignalException: Process \d{1,10} got signal: 1$",
        meaning="torchrun was ended by SIGHUP: the terminal or ssh session that it was started "
        "from was closed.",
        fix="Start it in tmux, with `nohup` or as a batch job.",
        example="torch.distributed.elastic.multiprocessing.api.SignalException: Process 4711 got "
        "signal: 1",
        origin="source: torch/distributed/elastic/multiprocessing/api.py of torch 2.13",
        weight=0.7,
    ),
)
