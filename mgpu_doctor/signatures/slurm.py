"""How Slurm ends a job, and why it does not start one."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature

_CANCELLED = (
    r"\*\*\* (?P<step>(?:JOB|STEP) \S{1,40}) ON (?P<host>\S{1,64}) CANCELLED AT "
    r"(?P<time>\S{10,30}) "
)
_REQ = "source: src/slurmd/slurmstepd/req.c of Slurm 23.11"
_OOM_FIX = (
    "Ask for more memory (`--mem`, `--mem-per-gpu`), use fewer data-loader workers; `sacct -j JOB "
    "-o JobID,State,MaxRSS,ReqMem` shows what was used."
)
_TASK = r"srun: error: (?P<host>\S{1,64}): tasks? (?P<task>[\d,\[\]-]{1,200}): "

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="slurm-time-limit",
        code="failed-time-limit",
        role=Role.CAUSE,
        needle="DUE TO TIME LIMIT ***",
        pattern=_CANCELLED + r"DUE TO TIME LIMIT \*\*\*",
        meaning="Slurm ended {step} on {host}: its time limit was over.",
        fix="Ask for more time (`--time`), or save checkpoints and let Slurm warn the job before "
        "the end: `--signal=B:USR1@300` with `--requeue`.",
        example="slurmstepd: error: *** JOB 42221 ON node1247 CANCELLED AT 2022-04-14T16:20:46 "
        "DUE TO TIME LIMIT ***",
        origin=_REQ,
        weight=0.98,
        more_heads=("DUE TO TIME LIM",),
    ),
    Signature(
        id="slurm-preempted",
        code="failed-preempted",
        role=Role.CAUSE,
        needle="DUE TO PREEMPTION ***",
        pattern=_CANCELLED + r"DUE TO PREEMPTION \*\*\*",
        meaning="Slurm took the nodes of {step} for a job of higher priority.",
        fix="Submit with `--requeue` and resume from a checkpoint, or use a partition that is not "
        "preempted.",
        example="slurmstepd: error: *** STEP 1943824.0 ON node17 CANCELLED AT 2023-03-06T03:17:51 "
        "DUE TO PREEMPTION ***",
        origin=_REQ,
        weight=0.98,
    ),
    Signature(
        id="slurm-requeued",
        code="failed-preempted",
        role=Role.CAUSE,
        needle="DUE TO JOB REQUEUE ***",
        pattern=_CANCELLED + r"DUE TO JOB REQUEUE \*\*\*",
        meaning="Slurm put {step} back into the queue; it will start again.",
        fix="Nothing, if the job resumes from a checkpoint. `scontrol show job` shows who "
        "requested it.",
        example="slurmstepd: error: *** JOB 42221 ON node1247 CANCELLED AT 2022-04-14T16:20:46 "
        "DUE TO JOB REQUEUE ***",
        origin=_REQ,
        weight=0.95,
    ),
    Signature(
        id="slurm-node-failure",
        code="failed-killed",
        role=Role.CAUSE,
        needle="DUE TO NODE FAILURE, SEE SLURMCTLD LOG",
        pattern=_CANCELLED + r"DUE TO NODE FAILURE, SEE SLURMCTLD LOG",
        meaning="Slurm ended {step}, because a node of the job failed.",
        fix="Submit again with `--exclude=NODE` (`sacct -j JOB -o NodeList,State` names the node) "
        "and tell your administrator.",
        example="slurmstepd: error: *** STEP 1943824.0 ON node17 CANCELLED AT 2023-03-06T03:17:51 "
        "DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***",
        origin=_REQ,
        weight=0.95,
    ),
    Signature(
        id="srun-node-failure",
        code="failed-killed",
        role=Role.CAUSE,
        needle="srun: error: Node failure on ",
        pattern=r"srun: error: Node failure on (?P<host>\S{1,64})",
        meaning="The node {host} failed or was lost.",
        fix="Submit again with `--exclude={host}` and tell your administrator.",
        example="srun: error: Node failure on node37",
        origin="source: src/srun/libsrun/allocate.c of Slurm 23.11",
        weight=0.95,
    ),
    Signature(
        id="slurm-memory-error",
        code="failed-killed",
        role=Role.CAUSE,
        needle=" UNCORRECTABLE MEMORY ERROR AT ",
        pattern=r"\*\*\* (?P<step>(?:JOB|STEP) \S{1,40}) ON (?P<host>\S{1,64}) UNCORRECTABLE "
        r"MEMORY ERROR AT ",
        meaning="{host} had a memory error that could not be corrected, and {step} was ended.",
        fix="Submit again with `--exclude={host}` and tell your administrator.",
        example="slurmstepd: error: *** JOB 42221 ON node1247 UNCORRECTABLE MEMORY ERROR AT "
        "2022-04-14T16:20:46 ***",
        origin=_REQ,
        weight=0.95,
        needle_tells=False,
    ),
    Signature(
        id="slurm-cancelled",
        code="failed-killed",
        role=Role.SYMPTOM,
        needle=" CANCELLED AT ",
        pattern=_CANCELLED + r"\*\*\*",
        meaning="{step} on {host} was cancelled: by `scancel`, or by srun after one of its tasks "
        "had failed.",
        fix="If nobody cancelled it, look for the task that failed before.",
        example="slurmstepd: error: *** STEP 5428400.0 ON node022 CANCELLED AT "
        "2023-05-30T19:46:40 ***",
        origin=_REQ,
        weight=0.5,
    ),
    Signature(
        id="slurm-oom-kill",
        code="oom-host",
        role=Role.CAUSE,
        needle="error: Detected ",
        pattern=r"error: Detected (?P<count>\d+) oom[-_]kill event(?:\(s\)|s)? in (?P<step>[\w.=+ "
        r"]{1,60}?)(?: cgroup)?\.",
        meaning="The job's memory limit was reached and the kernel killed {count} of its "
        "processes ({step}).",
        fix=_OOM_FIX,
        example="slurmstepd: error: Detected 1 oom-kill event(s) in StepId=9209586.0. Some of "
        "your processes may have been killed by the cgroup out-of-memory handler.",
        origin="source: src/plugins/task/cgroup/task_cgroup_memory.c of Slurm 20.11; newer "
        "releases write oom_kill",
        weight=0.95,
        more_heads=(
            "Some of your processes may have been killed by the cgroup out-of-memory handler",
        ),
    ),
    Signature(
        id="slurm-memory-limit",
        code="oom-host",
        role=Role.CAUSE,
        needle=" exceeded memory limit (",
        pattern=r"(?P<step>[Ss]tep\S{1,40}(?: \S{1,40})?|Job \S{1,40}) exceeded memory limit \("
        r"(?P<used>\d+) > (?P<limit>\d+)\), being killed",
        meaning="{step} used more memory than it asked for ({used} > {limit}), and Slurm ended it.",
        fix=_OOM_FIX,
        example="slurmstepd: error: StepId=7.batch exceeded memory limit (734003200 > 52428800), "
        "being killed",
        origin="source: src/common/slurm_jobacct_gather.c of Slurm 20.11",
        weight=0.95,
        needle_tells=False,
    ),
    Signature(
        id="srun-task-out-of-memory",
        code="oom-host",
        role=Role.CAUSE,
        needle=": Out Of Memory",
        pattern=_TASK + r"Out Of Memory",
        meaning="Task {task} on {host} was killed because the job's memory limit was reached.",
        fix=_OOM_FIX,
        example="srun: error: node3: task 0: Out Of Memory",
        origin="source: src/srun/libsrun/launch.c of Slurm 23.11",
        needle_tells=False,
    ),
    Signature(
        id="srun-task-crashed",
        code="failed-signal",
        role=Role.CAUSE,
        needle="srun: error: ",
        pattern=_TASK + r"(?P<signal>Segmentation fault|Bus error|Aborted|Illegal instruction|"
        r"Floating point exception)",
        meaning="Task {task} on {host} crashed: {signal}.",
        fix="Run with PYTHONFAULTHANDLER=1 to get the Python stack of the crash.",
        example="srun: error: node01: task 0: Segmentation fault (core dumped)",
        origin="source: src/srun/libsrun/launch.c of Slurm 23.11",
        weight=0.7,
    ),
    Signature(
        id="srun-task-killed",
        code="failed-killed",
        role=Role.SYMPTOM,
        needle="srun: error: ",
        pattern=_TASK + r"(?P<signal>Killed|Terminated)\b",
        meaning="Task {task} on {host} was ended from outside ({signal}): by the kernel for "
        "memory, by a person, or by srun after another task had failed.",
        fix="See `sacct -j JOB -o JobID,State,ExitCode,MaxRSS` and the first task that failed.",
        example="srun: error: node3: tasks 0-2,5,7: Terminated",
        origin="source: src/srun/libsrun/launch.c of Slurm 23.11",
        weight=0.5,
    ),
    Signature(
        id="srun-task-exited",
        code="failed-exception",
        role=Role.SYMPTOM,
        needle=": Exited with exit code ",
        pattern=_TASK + r"Exited with exit code (?P<exit_code>\d{1,3})",
        meaning="Task {task} on {host} ended with exit code {exit_code}. Its own output says why.",
        fix="Look at the output of task {task} (`srun --label` marks the lines by task).",
        example="srun: error: node44: task 3: Exited with exit code 1",
        origin="source: src/srun/libsrun/launch.c of Slurm 23.11",
        weight=0.5,
        needle_tells=False,
    ),
    Signature(
        id="slurm-no-such-gres",
        code="gpu-missing",
        role=Role.CAUSE,
        needle="Invalid generic resource (gres) specification",
        pattern=r"(?:error: |failed: |job \d+: )Invalid generic resource \(gres\) specification",
        meaning="The job asks for a kind or number of GPUs that this partition or allocation does "
        "not have.",
        fix="Check `--gres`/`--gpus` against `sinfo -o '%P %G'`; inside an allocation srun gets "
        "no more than sbatch asked for.",
        example="srun: error: Unable to create step for job 13610226: Invalid generic resource "
        "(gres) specification",
        origin="source: src/common/slurm_errno.c of Slurm 23.11",
        weight=0.95,
    ),
    Signature(
        id="slurm-cannot-place",
        code="failed-world-size",
        role=Role.CAUSE,
        needle="srun: error: Unable to ",
        pattern=r"srun: error: Unable to (?:create step for job (?P<job>\d+)|allocate resources): "
        r"(?P<reason>More processors requested than permitted|Requested node configuration is not "
        r"available|Memory required by task is not available|Requested nodes are busy|Node count "
        r"specification invalid)",
        meaning="Slurm cannot place the tasks: {reason}.",
        fix="Let nodes, tasks, CPUs and memory of srun fit those of the allocation: "
        "`--ntasks-per-node` ranks with `--cpus-per-task` each.",
        example="srun: error: Unable to create step for job 99825: More processors requested than "
        "permitted",
        origin="source: src/common/slurm_errno.c of Slurm 23.11",
        needle_tells=False,
    ),
    Signature(
        id="slurm-cannot-execute",
        code="failed-permission",
        role=Role.CAUSE,
        needle="error: execve(): ",
        pattern=r"error: execve\(\): (?P<file>.{1,300}): Permission denied",
        meaning="The node may not execute {file}.",
        fix="`chmod +x {file}`, or start it with its interpreter: `srun python {file}`.",
        example="slurmstepd: error: execve(): train.sh: Permission denied",
        origin="source: src/slurmd/slurmstepd/task.c of Slurm 23.11",
        weight=0.95,
    ),
    Signature(
        id="slurm-no-such-program",
        code="failed-exception",
        role=Role.CAUSE,
        needle="error: execve(): ",
        pattern=r"error: execve\(\): (?P<file>.{1,300}): No such file or directory",
        meaning="There is no {file} on the node, so the task did not start.",
        fix="Give the full path, on storage that every node mounts, and activate the environment "
        "in the batch script.",
        example="slurmstepd: error: execve(): torchrun: No such file or directory",
        origin="source: src/slurmd/slurmstepd/task.c of Slurm 23.11",
        weight=0.95,
    ),
    Signature(
        id="slurm-memory-limit-some-point",
        code="oom-host",
        role=Role.SYMPTOM,
        needle=" memory limit at some point.",
        pattern=r"error: Exceeded (?:job|step) memory limit at some point\.",
        meaning="The job reached the memory that it asked Slurm for; cached files count, too, so "
        "it may have done no harm.",
        fix="Ask for more (`--mem`, `--mem-per-cpu`), or use fewer data-loader workers; `sacct -j "
        "JOB -o MaxRSS` shows how much it used.",
        example="slurmstepd: error: Exceeded job memory limit at some point.",
        origin="recalled: src/plugins/task/cgroup of Slurm 17",
        severity="warning",
        weight=0.7,
        needs_failure=True,
    ),
    Signature(
        id="sbatch-node-configuration",
        code="failed-world-size",
        role=Role.CAUSE,
        needle="Requested node configuration is not available",
        pattern=r"error: (?:Batch job submission failed|Unable to allocate resources): Requested "
        r"node configuration is not available",
        meaning="No node of the cluster has as many GPUs, cores or as much memory as the job asks "
        "for.",
        fix="`sinfo -o '%n %G %c %m'` lists what nodes have.",
        example="sbatch: error: Batch job submission failed: Requested node configuration is not "
        "available",
        origin="recalled: src/common/slurm_errno.c of Slurm 22",
        weight=0.95,
        needle_tells=False,
    ),
    Signature(
        id="slurm-task-not-launched",
        code="failed-exception",
        role=Role.CAUSE,
        needle="srun: error: Task launch for ",
        pattern=r"srun: error: Task launch for \S{1,40} failed on node (?P<host>[\w.-]{1,100}): "
        r"(?P<what>.{1,80})",
        meaning="Slurm could not start the tasks on {host}: {what}.",
        fix="Try again without that host (`--exclude`), and tell the administrator.",
        example="srun: error: Task launch for 36.0 failed on node node131: Job credential expired",
        origin="recalled: src/srun of Slurm 20",
        weight=0.7,
        needle_tells=False,
    ),
)
