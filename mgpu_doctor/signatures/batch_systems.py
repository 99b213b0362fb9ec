"""How batch systems, CI, Dask and the kernel's helpers end a job: its time is over, its memory."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_MORE_TIME = "Ask for more time, and resume from a checkpoint."
_LESS_MEMORY = (
    "Ask for more memory, or use fewer data-loader workers, a smaller prefetch and memory-mapped "
    "data."
)


def _ended(
    name: str,
    code: str,
    needle: str,
    pattern: str,
    *,
    meaning: str,
    example: str,
    origin: str,
    fix: str | None = None,
    weight: float = 0.9,
    needle_tells: bool = True,
) -> Signature:
    """What ended the job, by the system that ended it."""
    return Signature(
        id=name,
        code=code,
        role=Role.CAUSE,
        needle=needle,
        pattern=pattern,
        meaning=meaning,
        fix=fix or (_MORE_TIME if code == "failed-time-limit" else _LESS_MEMORY),
        example=example,
        origin=origin,
        weight=weight,
        needle_tells=needle_tells,
    )


SIGNATURES: tuple[Signature, ...] = (
    _ended(
        "moab-time-limit",
        "failed-time-limit",
        "job exceeded wallclock limit",
        r"\bMOAB_INFO: {1,8}job exceeded wallclock limit",
        meaning="Moab ended the job: its time was over.",
        example="MOAB_INFO:  job exceeded wallclock limit",
        origin="recalled: the job epilogue of Moab 7",
    ),
    _ended(
        "moab-resource-limit",
        "failed-time-limit",
        "job violates resource ",
        r"job '?[\w.-]{0,40}'? ?(?:in state '\w{1,20}' )?violates? (?:WCLIMIT|wallclock)|job "
        r"violates resource (?:limits|utilization policies).{0,80}?(?:[Ww]all|WCLIMIT)",
        meaning="The scheduler ended the job: its time was over.",
        example="job violates resource limits (policy action: CANCEL): wallclock",
        origin="recalled: the messages of Maui 3",
        weight=0.8,
        needle_tells=False,
    ),
    _ended(
        "grid-engine-time-limit",
        "failed-time-limit",
        "exceeded hard wallclock time",
        r"\bjob (?P<job>\d{1,12})(?:\.\d{1,8})? exceeded hard wallclock time",
        meaning="Grid Engine ended job {job}: its time was over.",
        example="job 4711 exceeded hard wallclock time - initiate terminate method",
        origin="recalled: source/daemons/execd/execd_ck_to_do.c of Grid Engine 8",
    ),
    _ended(
        "grid-engine-memory-limit",
        "oom-host",
        " exceeds job hard limit ",
        r"\bjob (?P<job>\d{1,12})(?:\.\d{1,8})? exceeds job hard limit \"(?:h|s)_(?:vmem|rss)\"",
        meaning="Grid Engine ended job {job}: it used more memory than its limit.",
        example='job 4711.1 exceeds job hard limit "h_vmem" of queue "gpu.q@node3" '
        "(25769803776.00000 > limit:21474836480.00000) - sending SIGKILL",
        origin="recalled: source/daemons/execd/execd_ck_to_do.c of Grid Engine 8",
    ),
    _ended(
        "walltime-exceeded",
        "failed-time-limit",
        " walltime exceeded",
        r"\b(?i:maximum|job|requested) walltime exceeded",
        meaning="The scheduler ended the job: its time was over.",
        example="maximum walltime exceeded",
        origin="recalled: the messages of Cobalt 1 and HTCondor",
        weight=0.85,
        needle_tells=False,
    ),
    _ended(
        "condor-memory-limit",
        "oom-host",
        "Job has gone over ",
        r"Job has gone over (?:cgroup )?memory limit of (?P<limit>\d{1,12}) ?(?:MB|megabytes)",
        meaning="HTCondor held the job: it used more than its {limit} MB of memory.",
        example="Job has gone over cgroup memory limit of 16384 megabytes. Last measured usage: "
        "16380 megabytes.",
        origin="recalled: src/condor_starter.V6.1 of HTCondor 10",
        needle_tells=False,
    ),
    _ended(
        "sagemaker-time-limit",
        "failed-time-limit",
        "MaxRuntimeExceeded",
        r"\bMaxRuntimeExceeded\b",
        meaning="SageMaker ended the job: its time was over.",
        example="2023-05-01 10:20:30 MaxRuntimeExceeded - Training job runtime exceeded "
        "MaxRuntimeInSeconds provided",
        origin="recalled: the states of SageMaker training jobs 2023",
        needle_tells=False,
    ),
    _ended(
        "cloud-replica-memory",
        "oom-host",
        " ran out-of-memory and exited",
        r"The replica (?P<replica>\w{1,20} \d{1,6}) ran out-of-memory and exited",
        meaning="The memory of {replica} ran out, and it was killed.",
        example="The replica worker 0 ran out-of-memory and exited with a non-zero status of "
        "9(SIGKILL).",
        origin="recalled: the messages of Vertex AI 2023",
    ),
    _ended(
        "sacct-time-limit",
        "failed-time-limit",
        " TIMEOUT ",
        r"\sTIMEOUT\s{1,12}\d{1,3}:\d{1,3}\s*$",
        meaning="Slurm's accounting says that the job's time was over.",
        example="4711        train        gpu       lab          8    TIMEOUT      0:0",
        origin="recalled: sacct of Slurm 20",
        needle_tells=False,
    ),
    _ended(
        "kernel-killed-process",
        "oom-host",
        "Killed process ",
        r"(?<!of memory: )\bKilled process (?P<pid>\d{1,10}) \((?P<program>[^)]{1,64})\),? (?:UID "
        r"\d{1,10},? )?"
        r"total-vm:",
        meaning="The kernel killed process {pid} ({program}) because memory ran out.",
        example="Killed process 4711 (python) total-vm:58217544kB, anon-rss:50331648kB, "
        "file-rss:0kB",
        origin="recalled: mm/oom_kill.c of Linux 4",
        weight=0.95,
        needle_tells=False,
    ),
    _ended(
        "kernel-reaped-process",
        "oom-host",
        "oom_reaper: reaped process ",
        r"oom_reaper: reaped process (?P<pid>\d{1,10}) \((?P<program>[^)]{1,64})\)",
        meaning="The kernel killed process {pid} ({program}) because memory ran out.",
        example="oom_reaper: reaped process 4711 (python), now anon-rss:0kB, file-rss:0kB",
        origin="recalled: mm/oom_kill.c of Linux 5",
        weight=0.95,
        needle_tells=True,
    ),
    _ended(
        "cgroup-limit-killed",
        "oom-host",
        " killed as a result of limit of ",
        r"\bTask in \S{1,300} killed as a result of limit of \S{1,300}",
        meaning="A container reached its memory limit and the kernel killed a process of it.",
        example="Task in /docker/1a2b killed as a result of limit of /docker/1a2b",
        origin="recalled: mm/memcontrol.c of Linux 4",
        weight=0.95,
    ),
    _ended(
        "cloud-container-memory",
        "oom-host",
        "Container killed due to memory usage",
        r"\bContainer killed due to memory usage",
        meaning="The container reached its memory limit and was killed.",
        example="OutOfMemoryError: Container killed due to memory usage",
        origin="recalled: the states of AWS Batch and ECS tasks 2023",
        weight=0.95,
    ),
    _ended(
        "notebook-memory-exceeded",
        "oom-host",
        "tried to allocate more memory than is available",
        r"[Yy]our notebook tried to allocate more memory than is available",
        meaning="The notebook's process was killed because the memory of its machine ran out.",
        example="Your notebook tried to allocate more memory than is available. It has restarted.",
        origin="recalled: the messages of Kaggle 2023",
    ),
    _ended(
        "sagemaker-memory",
        "oom-host",
        "Please use an instance type with more memory",
        r"Please use an instance type with more memory, or reduce the size of",
        meaning="The memory of the machine ran out, and SageMaker ended the job.",
        example="Please use an instance type with more memory, or reduce the size of job data "
        "processed on an instance.",
        origin="recalled: the messages of SageMaker 2023",
    ),
    _ended(
        "ray-memory-threshold",
        "oom-host",
        "exceeds the memory usage threshold of",
        r"exceeds the memory usage threshold of (?P<share>[\d.]{1,8}\d)",
        meaning="The host's memory was fuller than Ray's threshold of {share}, so Ray killed a "
        "worker.",
        example="Memory on the node was 60GB / 62GB (0.96), which exceeds the memory usage "
        "threshold "
        "of 0.95. Ray killed this worker because it was the most recently scheduled task",
        origin="recalled: src/ray/common/memory_monitor.cc of Ray 2",
        weight=0.95,
    ),
    _ended(
        "seff-out-of-memory",
        "oom-host",
        "OUT_OF_ME",
        r"(?:^State: |\s)OUT_OF_ME(?:MORY|\+)(?:\s|$)",
        meaning="Slurm's accounting says that the job ran out of memory.",
        example="State: OUT_OF_MEMORY (exit code 0)",
        origin="recalled: contribs/seff and sacct of Slurm 20",
        needle_tells=False,
    ),
    _ended(
        "seff-time-limit",
        "failed-time-limit",
        "State: TIMEOUT",
        r"^\s{0,8}State: TIMEOUT\b",
        meaning="Slurm's accounting says that the job's time was over.",
        example="State: TIMEOUT (exit code 0)",
        origin="recalled: contribs/seff of Slurm 20",
        needle_tells=False,
    ),
    _ended(
        "ci-time-limit",
        "failed-time-limit",
        "has exceeded the maximum execution time of ",
        r"has exceeded the maximum execution time of (?P<minutes>\d{1,6}) minutes",
        meaning="The CI ended the job after {minutes} minutes.",
        example="The job running on runner gpu-3 has exceeded the maximum execution time of 360 "
        "minutes.",
        origin="recalled: the runner of GitHub Actions 2",
    ),
    _ended(
        "gitlab-time-limit",
        "failed-time-limit",
        "Job failed: execution took longer than ",
        r"Job failed: execution took longer than (?P<time>\w{1,20})",
        meaning="The CI ended the job after {time}.",
        example="ERROR: Job failed: execution took longer than 1h0m0s seconds",
        origin="recalled: common/build.go of GitLab Runner 15",
    ),
    _ended(
        "systemd-oom-pressure",
        "oom-host",
        " due to memory ",
        r"systemd-oomd(?:\[\d{1,10}\])?: Killed \S{1,200} due to memory (?:pressure|used)",
        meaning="systemd's out-of-memory daemon killed the session or service of the job.",
        example="systemd-oomd[812]: Killed /user.slice/user-1000.slice/session-3.scope due to "
        "memory pressure for /user.slice being 71.52% > 50.00% for > 20s with reclaim activity",
        origin="recalled: src/oom/oomd-manager.c of systemd 250",
        needle_tells=False,
    ),
    _ended(
        "systemd-oom-killed",
        "oom-host",
        "of this unit has been killed by the OOM killer",
        r"A process of this unit has been killed by the OOM killer",
        meaning="The kernel killed a process of the session or service of the job when memory ran "
        "out.",
        example="user@1000.service: A process of this unit has been killed by the OOM killer.",
        origin="recalled: src/core/unit.c of systemd 250",
    ),
    _ended(
        "yarn-virtual-memory-limit",
        "oom-host",
        " running beyond virtual memory limits",
        r" is running beyond virtual memory limits\.",
        meaning="YARN killed the container: its virtual memory was over the limit.",
        fix="Set `yarn.nodemanager.vmem-check-enabled=false`, or ask for larger containers.",
        example="Container [pid=20417,containerID=container_1700000000001_0003_01_000002] is "
        "running beyond virtual memory limits. Current usage: 1.1 GB of 4 GB physical memory used; "
        "8.9 GB of 8.4 GB virtual memory used. Killing container.",
        origin="source: ContainersMonitorImpl of Hadoop 2",
    ),
    _ended(
        "ray-memory-monitor",
        "oom-host",
        "RayOutOfMemoryError: More than ",
        r"RayOutOfMemoryError: More than (?P<share>\d{1,3})% of the memory on node \S{1,100} is "
        r"used",
        meaning="More than {share} % of the host's memory was used, so Ray stopped a worker.",
        example="ray.memory_monitor.RayOutOfMemoryError: More than 95% of the memory on node gpu3 "
        "is used (60.1 / 62.8 GB).",
        origin="recalled: python/ray/memory_monitor.py of Ray 1",
    ),
    _ended(
        "dask-memory-budget",
        "oom-host",
        "% memory budget",
        r"\bWorker (?:\S{1,80} (?:\(pid=\d{1,10}\) )?)?exceeded (?P<share>\d{1,3})% memory budget",
        meaning="A worker of Dask used {share} % of its memory limit and was restarted.",
        fix="Raise `--memory-limit`, or use smaller partitions.",
        example="distributed.nanny - WARNING - Worker exceeded 95% memory budget. Restarting",
        origin="recalled: distributed/nanny.py of Dask 2022",
        needle_tells=False,
    ),
    _ended(
        "jvm-heap-exhausted",
        "oom-host",
        "java.lang.OutOfMemoryError: ",
        r"java\.lang\.OutOfMemoryError: (?P<what>[A-Z][\w ]{2,40})",
        meaning="A Java process ran out of memory ({what}).",
        fix="Raise the heap (`spark.executor.memory`, `spark.driver.memory`, `-Xmx`).",
        example="java.lang.OutOfMemoryError: Java heap space",
        origin="recalled: the messages of OpenJDK 11",
        needle_tells=False,
    ),
    _ended(
        "windows-paging-file",
        "oom-host",
        "The paging file is too small for this operation to complete",
        r"The paging file is too small for this operation to complete",
        meaning="Windows ran out of memory that it can promise: each worker process loads its own "
        "copy of the CUDA libraries.",
        fix="Enlarge the paging file, or use fewer data-loader workers (`num_workers=0`).",
        example="OSError: [WinError 1455] The paging file is too small for this operation to "
        "complete.",
        origin="recalled: the system messages of Windows 10",
    ),
    _ended(
        "torch-host-allocation-old",
        "oom-host",
        "Torch: not enough memory: you tried to allocate",
        r"Torch: not enough memory: you tried to allocate (?P<size>\d{1,9} ?[KMG]?B)",
        meaning="Allocating {size} of host memory failed.",
        example="RuntimeError: $ Torch: not enough memory: you tried to allocate 4GB. Buy new RAM!",
        origin="recalled: aten/src/TH/THGeneral.cpp of torch 1.0",
    ),
    _ended(
        "notebook-session-memory",
        "oom-host",
        "crashed after using all available RAM",
        r"[Yy]our session crashed after using all available RAM",
        meaning="The notebook's process was killed because the memory of its machine ran out.",
        example="Your session crashed after using all available RAM.",
        origin="recalled: the messages of Colab 2023",
    ),
    Signature(
        id="dask-worker-killed",
        code="failed-killed",
        role=Role.SYMPTOM,
        needle="KilledWorker: ",
        pattern=r"\bKilledWorker: \(",
        meaning="Workers of Dask died while they ran one task: mostly their memory ran out.",
        fix="Read the workers' logs; raise `--memory-limit`, or use smaller partitions.",
        example="distributed.scheduler.KilledWorker: ('x', <Worker 'tcp://10.0.0.7:41001'>)",
        origin="recalled: distributed/scheduler.py of Dask 2022",
        weight=0.5,
        needle_tells=False,
    ),
    Signature(
        id="yarn-container-killed",
        code="failed-killed",
        role=Role.SYMPTOM,
        needle="Exit status: 137",
        pattern=r"Exit status: 137\b",
        meaning="YARN's container was killed with SIGKILL: mostly because of its memory.",
        fix="Raise `spark.executor.memoryOverhead` and `spark.executor.memory`.",
        example="ExecutorLostFailure (executor 3 exited caused by one of the running tasks) "
        "Reason: Container marked as failed: container_17_01_000004 on host: node3. Exit status: "
        "137. Diagnostics: Killed by external signal",
        origin="recalled: YarnAllocator.scala of Spark 2.4",
        weight=0.5,
        needle_tells=False,
    ),
)
