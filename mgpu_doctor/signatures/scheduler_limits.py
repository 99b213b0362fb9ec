"""Time and memory limits that batch systems, clouds and cluster frameworks enforce on a job."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_MORE_TIME = "Ask for more time, and resume from a checkpoint."
_LESS_MEMORY = (
    "Ask for more memory, or use fewer data-loader workers, a smaller prefetch and memory-mapped "
    "data."
)

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
        id="moab-time-limit",
        code="failed-time-limit",
        role=Role.CAUSE,
        needle="job exceeded wallclock limit",
        pattern=r"\bMOAB_INFO: {1,8}job exceeded wallclock limit",
        meaning="Moab ended the job: its time was over.",
        fix=_MORE_TIME,
        example="MOAB_INFO:  job exceeded wallclock limit",
        origin="recalled: the job epilogue of Moab 7",
    ),
    Signature(
        id="moab-resource-limit",
        code="failed-time-limit",
        role=Role.CAUSE,
        needle="job violates resource ",
        pattern=r"job '?[\w.-]{0,40}'? ?(?:in state '\w{1,20}' )?violates? (?:WCLIMIT|wallclock)|"
        r"job violates resource (?:limits|utilization policies).{0,80}?(?:[Ww]all|WCLIMIT)",
        meaning="The scheduler ended the job: its time was over.",
        fix=_MORE_TIME,
        example="job violates resource limits (policy action: CANCEL): wallclock",
        origin="recalled: the messages of Maui 3",
        weight=0.8,
        needle_tells=False,
    ),
    Signature(
        id="grid-engine-time-limit",
        code="failed-time-limit",
        role=Role.CAUSE,
        needle="exceeded hard wallclock time",
        pattern=r"\bjob (?P<job>\d{1,12})(?:\.\d{1,8})? exceeded hard wallclock time",
        meaning="Grid Engine ended job {job}: its time was over.",
        fix=_MORE_TIME,
        example="job 4711 exceeded hard wallclock time - initiate terminate method",
        origin="recalled: source/daemons/execd/execd_ck_to_do.c of Grid Engine 8",
    ),
    Signature(
        id="grid-engine-memory-limit",
        code="oom-host",
        role=Role.CAUSE,
        needle=" exceeds job hard limit ",
        pattern=r"\bjob (?P<job>\d{1,12})(?:\.\d{1,8})? exceeds job hard limit \"(?:h|s)_(?:vmem|"
        r"rss)\"",
        meaning="Grid Engine ended job {job}: it used more memory than its limit.",
        fix=_LESS_MEMORY,
        example='job 4711.1 exceeds job hard limit "h_vmem" of queue "gpu.q@node3" '
        "(25769803776.00000 > limit:21474836480.00000) - sending SIGKILL",
        origin="recalled: source/daemons/execd/execd_ck_to_do.c of Grid Engine 8",
    ),
    Signature(
        id="walltime-exceeded",
        code="failed-time-limit",
        role=Role.CAUSE,
        needle=" walltime exceeded",
        pattern=r"\b(?i:maximum|job|requested) walltime exceeded",
        meaning="The scheduler ended the job: its time was over.",
        fix=_MORE_TIME,
        example="maximum walltime exceeded",
        origin="recalled: the messages of Cobalt 1 and HTCondor",
        weight=0.85,
    ),
    Signature(
        id="condor-memory-limit",
        code="oom-host",
        role=Role.CAUSE,
        needle="Job has gone over ",
        pattern=r"Job has gone over (?:cgroup )?memory limit of (?P<limit>\d{1,12}) ?(?:MB|"
        r"megabytes)",
        meaning="HTCondor held the job: it used more than its {limit} MB of memory.",
        fix=_LESS_MEMORY,
        example="Job has gone over cgroup memory limit of 16384 megabytes. Last measured usage: "
        "16380 megabytes.",
        origin="recalled: src/condor_starter.V6.1 of HTCondor 10",
        needle_tells=False,
    ),
    Signature(
        id="sacct-time-limit",
        code="failed-time-limit",
        role=Role.CAUSE,
        needle=" TIMEOUT ",
        pattern=r"\sTIMEOUT\s{1,12}\d{1,3}:\d{1,3}\s*$",
        meaning="Slurm's accounting says that the job's time was over.",
        fix=_MORE_TIME,
        example="4711        train        gpu       lab          8    TIMEOUT      0:0",
        origin="recalled: sacct of Slurm 20",
    ),
    Signature(
        id="seff-out-of-memory",
        code="oom-host",
        role=Role.CAUSE,
        needle="OUT_OF_ME",
        pattern=r"(?:^State: |\s)OUT_OF_ME(?:MORY|\+)(?:\s|$)",
        meaning="Slurm's accounting says that the job ran out of memory.",
        fix=_LESS_MEMORY,
        example="State: OUT_OF_MEMORY (exit code 0)",
        origin="recalled: contribs/seff and sacct of Slurm 20",
        needle_tells=False,
    ),
    Signature(
        id="seff-time-limit",
        code="failed-time-limit",
        role=Role.CAUSE,
        needle="State: TIMEOUT",
        pattern=r"^\s{0,8}State: TIMEOUT\b",
        meaning="Slurm's accounting says that the job's time was over.",
        fix=_MORE_TIME,
        example="State: TIMEOUT (exit code 0)",
        origin="recalled: contribs/seff of Slurm 20",
    ),
    Signature(
        id="sagemaker-time-limit",
        code="failed-time-limit",
        role=Role.CAUSE,
        needle="MaxRuntimeExceeded",
        pattern=r"\bMaxRuntimeExceeded\b",
        meaning="SageMaker ended the job: its time was over.",
        fix=_MORE_TIME,
        example="2023-05-01 10:20:30 MaxRuntimeExceeded - Training job runtime exceeded "
        "MaxRuntimeInSeconds provided",
        origin="recalled: the states of SageMaker training jobs 2023",
    ),
    Signature(
        id="sagemaker-memory",
        code="oom-host",
        role=Role.CAUSE,
        needle="Please use an instance type with more memory",
        pattern=r"Please use an instance type with more memory, or reduce the size of",
        meaning="The memory of the machine ran out, and SageMaker ended the job.",
        fix=_LESS_MEMORY,
        example="Please use an instance type with more memory, or reduce the size of job data "
        "processed on an instance.",
        origin="recalled: the messages of SageMaker 2023",
    ),
    Signature(
        id="cloud-replica-memory",
        code="oom-host",
        role=Role.CAUSE,
        needle=" ran out-of-memory and exited",
        pattern=r"The replica (?P<replica>\w{1,20} \d{1,6}) ran out-of-memory and exited",
        meaning="The memory of {replica} ran out, and it was killed.",
        fix=_LESS_MEMORY,
        example="The replica worker 0 ran out-of-memory and exited with a non-zero status of "
        "9(SIGKILL).",
        origin="recalled: the messages of Vertex AI 2023",
    ),
    Signature(
        id="cloud-container-memory",
        code="oom-host",
        role=Role.CAUSE,
        needle="Container killed due to memory usage",
        pattern=r"\bContainer killed due to memory usage",
        meaning="The container reached its memory limit and was killed.",
        fix=_LESS_MEMORY,
        example="OutOfMemoryError: Container killed due to memory usage",
        origin="recalled: the states of AWS Batch and ECS tasks 2023",
        weight=0.95,
    ),
    Signature(
        id="notebook-memory-exceeded",
        code="oom-host",
        role=Role.CAUSE,
        needle="tried to allocate more memory than is available",
        pattern=r"[Yy]our notebook tried to allocate more memory than is available",
        meaning="The notebook's process was killed because the memory of its machine ran out.",
        fix=_LESS_MEMORY,
        example="Your notebook tried to allocate more memory than is available. It has restarted.",
        origin="recalled: the messages of Kaggle 2023",
    ),
    Signature(
        id="notebook-session-memory",
        code="oom-host",
        role=Role.CAUSE,
        needle="crashed after using all available RAM",
        pattern=r"[Yy]our session crashed after using all available RAM",
        meaning="The notebook's process was killed because the memory of its machine ran out.",
        fix=_LESS_MEMORY,
        example="Your session crashed after using all available RAM.",
        origin="recalled: the messages of Colab 2023",
    ),
    Signature(
        id="ci-time-limit",
        code="failed-time-limit",
        role=Role.CAUSE,
        needle="has exceeded the maximum execution time of ",
        pattern=r"has exceeded the maximum execution time of (?P<minutes>\d{1,6}) minutes",
        meaning="The CI ended the job after {minutes} minutes.",
        fix=_MORE_TIME,
        example="The job running on runner gpu-3 has exceeded the maximum execution time of 360 "
        "minutes.",
        origin="recalled: the runner of GitHub Actions 2",
    ),
    Signature(
        id="gitlab-time-limit",
        code="failed-time-limit",
        role=Role.CAUSE,
        needle="Job failed: execution took longer than ",
        pattern=r"Job failed: execution took longer than (?P<time>\w{1,20})",
        meaning="The CI ended the job after {time}.",
        fix=_MORE_TIME,
        example="ERROR: Job failed: execution took longer than 1h0m0s seconds",
        origin="recalled: common/build.go of GitLab Runner 15",
    ),
    Signature(
        id="ray-low-memory",
        code="oom-host",
        role=Role.CAUSE,
        needle="killed due to the node running low on memory",
        pattern=r"(?:Task was|Actor was|(?P<count>\d{1,9}) worker\(s\) were|Task) killed due to "
        r"the node running low on memory",
        meaning="The node ran short of memory and Ray killed a worker on it.",
        fix="Use fewer workers a node or data-loader workers; RAY_memory_usage_threshold moves "
        "the limit.",
        example="ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on "
        "memory.",
        origin="source: src/ray/raylet/node_manager.cc of Ray 2",
        weight=0.95,
    ),
    Signature(
        id="ray-memory-threshold",
        code="oom-host",
        role=Role.CAUSE,
        needle="exceeds the memory usage threshold of",
        pattern=r"exceeds the memory usage threshold of (?P<share>[\d.]{1,8}\d)",
        meaning="The host's memory was fuller than Ray's threshold of {share}, so Ray killed a "
        "worker.",
        fix=_LESS_MEMORY,
        example="Memory on the node was 60GB / 62GB (0.96), which exceeds the memory usage "
        "threshold of 0.95. Ray killed this worker because it was the most recently scheduled task",
        origin="recalled: src/ray/common/memory_monitor.cc of Ray 2",
        weight=0.95,
    ),
    Signature(
        id="ray-memory-monitor",
        code="oom-host",
        role=Role.CAUSE,
        needle="RayOutOfMemoryError: More than ",
        pattern=r"RayOutOfMemoryError: More than (?P<share>\d{1,3})% of the memory on node "
        r"\S{1,100} is used",
        meaning="More than {share} % of the host's memory was used, so Ray stopped a worker.",
        fix=_LESS_MEMORY,
        example="ray.memory_monitor.RayOutOfMemoryError: More than 95% of the memory on node gpu3 "
        "is used (60.1 / 62.8 GB).",
        origin="recalled: python/ray/memory_monitor.py of Ray 1",
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
        id="yarn-virtual-memory-limit",
        code="oom-host",
        role=Role.CAUSE,
        needle=" running beyond virtual memory limits",
        pattern=r" is running beyond virtual memory limits\.",
        meaning="YARN killed the container: its virtual memory was over the limit.",
        fix="Set `yarn.nodemanager.vmem-check-enabled=false`, or ask for larger containers.",
        example="Container [pid=20417,containerID=container_1700000000001_0003_01_000002] is "
        "running beyond virtual memory limits. Current usage: 1.1 GB of 4 GB physical memory "
        "used; 8.9 GB of 8.4 GB virtual memory used. Killing container.",
        origin="source: ContainersMonitorImpl of Hadoop 2",
    ),
    Signature(
        id="spark-memory-limit",
        code="oom-host",
        role=Role.CAUSE,
        needle="Container killed by YARN for exceeding ",
        pattern=r"Container killed by YARN for exceeding (?:\w+ )?memory limits\. +"
        r"(?P<used>[\d.]{1,12} ?[KMGT]?B) of (?P<limit>[\d.]{1,12} ?[KMGT]?B) (?:physical|"
        r"virtual) memory used",
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
        id="dask-memory-budget",
        code="oom-host",
        role=Role.CAUSE,
        needle="% memory budget",
        pattern=r"\bWorker (?:\S{1,80} (?:\(pid=\d{1,10}\) )?)?exceeded (?P<share>\d{1,3})% "
        r"memory budget",
        meaning="A worker of Dask used {share} % of its memory limit and was restarted.",
        fix="Raise `--memory-limit`, or use smaller partitions.",
        example="distributed.nanny - WARNING - Worker exceeded 95% memory budget. Restarting",
        origin="recalled: distributed/nanny.py of Dask 2022",
    ),
)
