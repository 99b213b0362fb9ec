"""How PBS, LSF and Ray end a job."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="pbs-time-limit",
        code="failed-time-limit",
        role=Role.CAUSE,
        needle="PBS: job killed: ",
        pattern=r"\bPBS: job killed: (?:walltime|cput) (?P<used>\d+) exceeded limit (?P<limit>\d+)",
        meaning="PBS ended the job: its time of {limit} s was over.",
        fix="Ask for more (`-l walltime=HH:MM:SS`), and resume from a checkpoint.",
        example="=>> PBS: job killed: walltime 7230 exceeded limit 7200",
        origin="source: src/resmom of OpenPBS 20",
        weight=0.98,
        needle_tells=False,
    ),
    Signature(
        id="pbs-memory-limit",
        code="oom-host",
        role=Role.CAUSE,
        needle="PBS: job killed: ",
        pattern=r"\bPBS: job killed: (?:v|p)?v?mem (?P<used>(?:job total )?\d{1,20} ?"
        r"(?:[kmg]?b)?) exceeded limit (?P<limit>\d+)",
        meaning="PBS ended the job: it used {used} of memory, more than its limit.",
        fix="Ask for more (`-l select=1:mem=64gb`), or use fewer data-loader workers.",
        example="=>> PBS: job killed: vmem 51231789056 exceeded limit 17179869184",
        origin="source: src/resmom of OpenPBS 20",
        weight=0.98,
        needle_tells=False,
    ),
    Signature(
        id="lsf-time-limit",
        code="failed-time-limit",
        role=Role.CAUSE,
        needle="TERM_RUNLIMIT",
        pattern=r"\bTERM_RUNLIMIT\b",
        meaning="LSF ended the job: its time was over.",
        fix="Ask for more (`bsub -W`), and resume from a checkpoint.",
        example="TERM_RUNLIMIT: job killed after reaching LSF run time limit.",
        origin="source: the job report of IBM LSF 10",
        weight=0.98,
    ),
    Signature(
        id="lsf-memory-limit",
        code="oom-host",
        role=Role.CAUSE,
        needle="TERM_MEMLIMIT",
        pattern=r"\bTERM_MEMLIMIT\b",
        meaning="LSF ended the job: it used more memory than it asked for.",
        fix="Ask for more (`bsub -M`, `rusage[mem=]`), or use fewer data-loader workers.",
        example="TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.",
        origin="source: the job report of IBM LSF 10",
        weight=0.98,
    ),
    Signature(
        id="ray-low-memory",
        code="oom-host",
        role=Role.CAUSE,
        needle="killed due to the node running low on memory",
        pattern=r"(?:Task was|Actor was|(?P<count>\d{1,9}) worker\(s\) were|Task) killed due to "
        r"the node running low on memory",
        meaning="The node ran short of memory and Ray killed a worker on it.",
        fix="Use fewer workers a node or data-loader workers; RAY_memory_usage_threshold moves the "
        "limit.",
        example="ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on "
        "memory.",
        origin="source: src/ray/raylet/node_manager.cc of Ray 2",
        weight=0.95,
    ),
    Signature(
        id="ray-actor-died",
        code="failed-killed",
        role=Role.SYMPTOM,
        needle="died unexpectedly before finishing this task",
        pattern=r"The actor died unexpectedly before finishing this task",
        meaning="A worker process of Ray ended; who waited for its result only reports it.",
        fix="Read the worker's own log (`ray logs`, `/tmp/ray/session_latest/logs/worker-*.err`) "
        "and the node's `dmesg`: SYSTEM_ERROR and no traceback mostly mean the OOM killer.",
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
        example="A worker died or was killed while executing a task by an unexpected system error. "
        "To troubleshoot the problem, check the logs for the dead worker.",
        origin="source: src/ray/raylet/node_manager.cc of Ray 2",
        weight=0.5,
    ),
    Signature(
        id="yarn-memory-limit",
        code="oom-host",
        role=Role.CAUSE,
        needle=" running beyond physical memory limits",
        pattern=r" is running beyond physical memory limits\. Current usage: (?P<used>[\d.]{1,12} "
        r"?[KMGT]?B) of (?P<limit>[\d.]{1,12} ?[KMGT]?B)",
        meaning="YARN killed the container: it used {used} of memory, its limit is {limit}.",
        fix="Ask for larger containers, or use fewer data-loader workers.",
        example="Container [pid=20417,containerID=container_1700000000001_0003_01_000002] is "
        "running beyond physical memory limits. Current usage: 12.1 GB of 12 GB physical memory "
        "used; 19.0 GB of 25.2 GB virtual memory used. Killing container.",
        origin="source: ContainersMonitorImpl of Hadoop 2",
        weight=0.95,
    ),
    Signature(
        id="yarn-memory-limit-bytes",
        code="oom-host",
        role=Role.CAUSE,
        needle="' memory limit. Current usage: ",
        pattern=r" is running (?P<over>\d+)B beyond the '(?:PHYSICAL|VIRTUAL)' memory limit\. "
        r"Current usage: (?P<used>[\d.]{1,12} ?[KMGT]?B) of (?P<limit>[\d.]{1,12} ?[KMGT]?B)",
        meaning="YARN killed the container: it used {over} bytes more than its memory limit.",
        fix="Ask for larger containers, or use fewer data-loader workers.",
        example="Container [pid=20417,containerID=container_1700000000001_0003_01_000002] is "
        "running 104857600B beyond the 'PHYSICAL' memory limit. Current usage: 12.1 GB of 12 GB "
        "physical memory used; 19.0 GB of 25.2 GB virtual memory used. Killing container.",
        origin="source: ContainersMonitorImpl of Hadoop 3",
        weight=0.95,
    ),
    Signature(
        id="ray-workers-out-of-memory",
        code="oom-host",
        role=Role.CAUSE,
        needle=" killed due to memory pressure (OOM)",
        pattern=r"\b(?P<workers>[1-9]\d{0,8}) Workers \(tasks / actors\) killed due to memory "
        r"pressure \(OOM\)",
        meaning="Ray killed {workers} workers, because the memory of their host was nearly full.",
        fix="Use fewer workers on each host (more CPUs for each task), or hosts with more memory. "
        "`ray logs raylet.out -ip ADDRESS` names them.",
        example="(raylet) node_manager.cc:3040: 3 Workers (tasks / actors) killed due to memory "
        "pressure (OOM), 0 Workers crashed due to other reasons at node (ID: 5d0c, IP: 10.0.0.7) "
        "over the last time period.",
        origin="recalled: src/ray/raylet/node_manager.cc of Ray 2.9",
        weight=0.95,
    ),
    Signature(
        id="spark-memory-limit",
        code="oom-host",
        role=Role.CAUSE,
        needle="Container killed by YARN for exceeding ",
        pattern=r"Container killed by YARN for exceeding (?:\w+ )?memory limits\. +"
        r"(?P<used>[\d.]{1,12} ?[KMGT]?B) of (?P<limit>[\d.]{1,12} ?[KMGT]?B) "
        r"(?:physical|virtual) memory used",
        meaning="YARN killed an executor of Spark: it used {used} of memory, its limit is {limit}.",
        fix="Raise `spark.executor.memoryOverhead` and `spark.executor.memory`, or use fewer "
        "data-loader workers.",
        example="ERROR YarnClusterScheduler: Lost executor 2 on node3: Container killed by YARN "
        "for exceeding memory limits. 12.1 GB of 12 GB physical memory used. Consider boosting "
        "spark.yarn.executor.memoryOverhead.",
        origin="recalled: YarnAllocator.scala of Spark 2.4",
        weight=0.95,
    ),
    Signature(
        id="ray-worker-exit-detail",
        code="failed-killed",
        role=Role.SYMPTOM,
        needle="Worker unexpectedly exits with a connection error",
        pattern=r"Worker unexpectedly exits with a connection error code \d{1,3}\.",
        meaning="A process of Ray ended without a report: mostly it was killed, when memory ran "
        "out, or it crashed.",
        fix="Look at that worker's log in /tmp/ray/session_latest/logs and for the out-of-memory "
        "killer in `dmesg` of its host.",
        example="Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with "
        "a connection error code 2. End of file.",
        origin="recalled: src/ray/core_worker of Ray 2.9",
        weight=0.5,
    ),
)
