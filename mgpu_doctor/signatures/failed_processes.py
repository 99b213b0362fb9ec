"""Processes that failed or disappeared, as launchers report them: without the reason."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="paddle-container-failed",
        code="failed-exception",
        role=Role.SYMPTOM,
        needle="LAUNCH ERROR",
        pattern=r"\bLAUNCH ERROR \d{4}-\d\d-\d\d [\d:,]{1,14} Container failed !!!",
        meaning="Paddle's launcher reports that a process of this host failed.",
        fix="Look for the first error of that process, above this line or in its own log. Its "
        "text is in log/workerlog.N.",
        example="LAUNCH ERROR 2024-03-01 10:20:30,400 Container failed !!!",
        origin="recalled: python/paddle/distributed/launch/controllers/controller.py of Paddle 2.6",
        weight=0.5,
        wrapper=True,
    ),
    Signature(
        id="operator-pod-exited",
        code="failed-exception",
        role=Role.SYMPTOM,
        needle=" exited with code ",
        pattern=r"\bPod: (?P<pod>[\w.-]{1,253}) exited with code (?P<exitcode>[1-9]\d{0,2})\b",
        meaning="The pod {pod} ended with exit code {exitcode}.",
        fix="Read its text: `kubectl logs POD --previous`.",
        example="Pod: research.bert-worker-3 exited with code 1",
        origin="source: pkg/controller.v1/tensorflow of Kubeflow's training operator",
        weight=0.5,
        needle_tells=False,
        wrapper=True,
    ),
    Signature(
        id="operator-pod-error",
        code="failed-exception",
        role=Role.SYMPTOM,
        needle="Error pod ",
        pattern=r"\bError pod (?P<pod>[\w.-]{1,253}) container (?P<container>[\w.-]{1,253}) "
        r"exitCode: (?P<exitcode>[1-9]\d{0,2})\b",
        meaning="The container {container} of pod {pod} ended with exit code {exitcode}.",
        fix="Read its text: `kubectl logs POD --previous`.",
        example="Error pod bert-worker-3 container pytorch exitCode: 1 terminated message:",
        origin="recalled: pkg/controller.v1 of Kubeflow's training operator 1.7",
        weight=0.5,
        wrapper=True,
    ),
    Signature(
        id="mpirun-primary-job",
        code="failed-exception",
        role=Role.SYMPTOM,
        needle="Primary job ",
        pattern=r"\bPrimary job {1,2}terminated normally, but \d{1,6} process(?:es)? returned",
        meaning="mpirun stopped the job because a process ended with an error.",
        fix="Look for the first error of that process, above this line or in its own log. `mpirun "
        "--tag-output` shows which rank prints what.",
        example="Primary job  terminated normally, but 1 process returned",
        origin="recalled: help-plm-base.txt of Open MPI 4.1",
        weight=0.5,
        wrapper=True,
    ),
    Signature(
        id="hydra-bad-termination",
        code="failed-exception",
        role=Role.SYMPTOM,
        needle="BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES",
        pattern=r"BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES",
        meaning="mpiexec stopped the job because a process crashed or ended with an error.",
        fix="Look for the first error of that process, above this line or in its own log. The "
        "lines below name its rank and exit code.",
        example="=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES",
        origin="recalled: hydra of MPICH 4.1",
        weight=0.5,
        wrapper=True,
    ),
    Signature(
        id="orte-daemon-not-started",
        code="failed-rendezvous",
        role=Role.CAUSE,
        needle="ORTE was unable to reliably start one or more daemons",
        pattern=r"ORTE was unable to reliably start one or more daemons",
        meaning="mpirun could not start its helper on another host: no ssh without a password, a "
        "missing orted, or a firewall.",
        fix="Try `ssh HOST orted --version` from this host; give the path with `mpirun --prefix`.",
        example="ORTE was unable to reliably start one or more daemons.",
        origin="recalled: help-errmgr-base.txt of Open MPI 4.1",
    ),
    Signature(
        id="composer-rank-crashed",
        code="failed-exception",
        role=Role.SYMPTOM,
        needle="crashed with exit code",
        pattern=r"composer\.cli\.launcher.{0,20}?Rank (?P<rank>\d{1,6}) crashed with exit code "
        r"(?P<exitcode>-?\d{1,3})",
        meaning="Composer's launcher reports that rank {rank} ended with {exitcode}; a negative "
        "number is a signal.",
        fix="Look for the first error of that process, above this line or in its own log. For -7 "
        "(bus error) give the container more shared memory: `--shm-size=16g`.",
        example="ERROR:composer.cli.launcher:Rank 5 crashed with exit code -11.",
        origin="recalled: composer/cli/launcher.py of Composer 0.20",
        weight=0.5,
        needle_tells=False,
        wrapper=True,
    ),
    Signature(
        id="xla-device-exception",
        code="failed-exception",
        role=Role.SYMPTOM,
        needle="Exception in device=",
        pattern=r"\bException in device=(?P<device>[A-Z]{2,6}:\d{1,5}): ",
        meaning="The process of device {device} failed.",
        fix="Look for the first error of that process, above this line or in its own log.",
        example="Exception in device=TPU:5: Cannot replicate if number of devices (1) is "
        "different from 8",
        origin="source: torch_xla/distributed/xla_multiprocessing.py of torch_xla",
        weight=0.6,
        needle_tells=False,
        wrapper=True,
    ),
    Signature(
        id="ray-actor-died",
        code="failed-killed",
        role=Role.SYMPTOM,
        needle="died unexpectedly before finishing this task",
        pattern=r"The actor died unexpectedly before finishing this task",
        meaning="A worker process of Ray ended; who waited for its result only reports it.",
        fix="Read the worker's own log (`ray logs`, `/tmp/ray/session_latest/logs/worker-*.err`) "
        "and the node's `dmesg`: SYSTEM_ERROR and no traceback usually mean the OOM killer.",
        example="ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this "
        "task.",
        origin="source: python/ray/exceptions.py of Ray 2",
        weight=0.5,
    ),
    Signature(
        id="ray-worker-died",
        code="failed-killed",
        role=Role.SYMPTOM,
        needle="worker died unexpectedly while executing this task",
        pattern=r"The worker died unexpectedly while executing this task",
        meaning="A worker process of Ray ended in the middle of a task.",
        fix="Read the worker's own log (`ray logs`, `/tmp/ray/session_latest/logs/worker-*.err`) "
        "and the node's `dmesg`.",
        example="ray.exceptions.WorkerCrashedError: The worker died unexpectedly while executing "
        "this task. Check python-core-worker-*.log files for more information.",
        origin="source: python/ray/exceptions.py of Ray 2",
        weight=0.5,
    ),
    Signature(
        id="ray-worker-lost",
        code="failed-killed",
        role=Role.SYMPTOM,
        needle="died or was killed while executing a task by an unexpected",
        pattern=r"A worker died or was killed while executing a task by an unexpected system error",
        meaning="A worker process of Ray ended without a word: killed, or crashed in native code.",
        fix="Read the worker's own log (`ray logs`, `/tmp/ray/session_latest/logs/worker-*.err`) "
        "and the node's `dmesg`.",
        example="A worker died or was killed while executing a task by an unexpected system "
        "error. To troubleshoot the problem, check the logs for the dead worker.",
        origin="source: src/ray/raylet/node_manager.cc of Ray 2",
        weight=0.5,
    ),
    Signature(
        id="ray-worker-exit-detail",
        code="failed-killed",
        role=Role.SYMPTOM,
        needle="Worker unexpectedly exits with a connection error",
        pattern=r"Worker unexpectedly exits with a connection error code \d{1,3}\.",
        meaning="A process of Ray ended without a report: usually it was killed, when memory ran "
        "out, or it crashed.",
        fix="Look at that worker's log in /tmp/ray/session_latest/logs and for the out-of-memory "
        "killer in `dmesg` of its host.",
        example="Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits "
        "with a connection error code 2. End of file.",
        origin="recalled: src/ray/core_worker of Ray 2.9",
        weight=0.5,
    ),
    Signature(
        id="dask-worker-killed",
        code="failed-killed",
        role=Role.SYMPTOM,
        needle="KilledWorker: ",
        pattern=r"\bKilledWorker: \(",
        meaning="Workers of Dask died while they ran one task: usually their memory ran out.",
        fix="Read the workers' logs; raise `--memory-limit`, or use smaller partitions.",
        example="distributed.scheduler.KilledWorker: ('x', <Worker 'tcp://10.0.0.7:41001'>)",
        origin="recalled: distributed/scheduler.py of Dask 2022",
        weight=0.5,
    ),
    Signature(
        id="yarn-container-killed",
        code="failed-killed",
        role=Role.SYMPTOM,
        needle="Exit status: 137",
        pattern=r"Exit status: 137\b",
        meaning="YARN's container was killed with SIGKILL: usually because of its memory.",
        fix="Raise `spark.executor.memoryOverhead` and `spark.executor.memory`.",
        example="ExecutorLostFailure (executor 3 exited caused by one of the running tasks) "
        "Reason: Container marked as failed: container_17_01_000004 on host: node3. Exit status: "
        "137. Diagnostics: Killed by external signal",
        origin="recalled: YarnAllocator.scala of Spark 2.4",
        weight=0.5,
    ),
)
