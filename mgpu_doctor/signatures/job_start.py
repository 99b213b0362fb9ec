"""Jobs that cannot start: mpirun, Slurm and the shell do not place them, or find no such
program."""

from __future__ import annotations

from mgpu_doctor.signatures.signature import Role, Signature


def _unstarted(
    name: str,
    code: str,
    needle: str,
    pattern: str,
    *,
    meaning: str,
    example: str,
    origin: str,
    fix: str,
    role: Role = Role.CAUSE,
    weight: float = 0.85,
    needle_tells: bool = False,
    wrapper: bool = False,
) -> Signature:
    """Why processes of the job were not started."""
    return Signature(
        id=name,
        code=code,
        role=role,
        needle=needle,
        pattern=pattern,
        meaning=meaning,
        fix=fix,
        example=example,
        origin=origin,
        weight=weight,
        needle_tells=needle_tells,
        wrapper=wrapper,
    )


SIGNATURES: tuple[Signature, ...] = (
    _unstarted(
        "mpirun-nonzero-exit",
        "failed-exception",
        "detected that one or more processes exited with non-zero",
        r"^(?:mpirun|mpiexec|prterun|orterun) detected that one or more processes exited with "
        r"non-zero",
        meaning="A process of the MPI job ended with an error; mpirun ended the others.",
        fix="Look above for the first error of a rank.",
        example="mpirun detected that one or more processes exited with non-zero status, thus "
        "causing",
        origin="recalled: orte/tools/orterun of Open MPI 4",
        role=Role.SYMPTOM,
        weight=0.5,
        needle_tells=True,
        wrapper=True,
    ),
    _unstarted(
        "mpirun-no-executable",
        "failed-exception",
        " was unable to ",
        r"^(?:mpirun|mpiexec|prterun) was unable to (?:find the specified executable file|launch "
        r"the "
        r"specified application)",
        meaning="mpirun found no such program on one of the hosts.",
        fix="Write the whole path; the program must be there on every host.",
        example="mpirun was unable to find the specified executable file, and therefore did not",
        origin="recalled: orte/tools/orterun of Open MPI 4",
        weight=0.85,
    ),
    _unstarted(
        "mpirun-as-root",
        "failed-permission",
        "has detected an attempt to run as root",
        r"(?:mpirun|mpiexec|prterun) has detected an attempt to run as root",
        meaning="mpirun refuses to run as root.",
        fix="`--allow-run-as-root` in a container, else another user.",
        example="mpirun has detected an attempt to run as root.",
        origin="recalled: orte/tools/orterun of Open MPI 4",
        weight=0.95,
        needle_tells=True,
    ),
    _unstarted(
        "mpi-map-too-few-nodes",
        "failed-world-size",
        "A sequential map was requested",
        r"A sequential map was requested, but not enough node entries",
        meaning="mpirun got fewer hosts than processes for a sequential map.",
        fix="Add host entries, or start fewer processes (`-np`).",
        example="A sequential map was requested, but not enough node entries",
        origin="recalled: orte/mca/rmaps/seq of Open MPI 4",
        weight=0.95,
        needle_tells=True,
    ),
    _unstarted(
        "mpi-nodes-filled",
        "failed-world-size",
        "allocated for this job are already filled",
        r"All nodes which are allocated for this job are already filled",
        meaning="mpirun got more processes than the job has slots.",
        fix="Start fewer processes (`-np`), ask for more tasks, or pass `--oversubscribe`.",
        example="All nodes which are allocated for this job are already filled.",
        origin="recalled: orte/mca/rmaps of Open MPI 4",
        weight=0.95,
        needle_tells=True,
    ),
    _unstarted(
        "mpi-binds-too-many",
        "failed-world-size",
        "would result in binding more",
        r"would result in binding more$|would result in binding more processes than cpus",
        meaning="mpirun shall bind more processes than there are cores.",
        fix="`--bind-to none`, fewer processes, or more cores.",
        example="A request was made to bind to that would result in binding more",
        origin="recalled: orte/mca/rmaps of Open MPI 4",
        weight=0.9,
        needle_tells=True,
    ),
    _unstarted(
        "sbatch-node-configuration",
        "failed-world-size",
        "Requested node configuration is not available",
        r"error: (?:Batch job submission failed|Unable to allocate resources): Requested node "
        r"configuration is not available",
        meaning="No node of the cluster has as many GPUs, cores or as much memory as the job asks "
        "for.",
        fix="`sinfo -o '%n %G %c %m'` lists what nodes have.",
        example="sbatch: error: Batch job submission failed: Requested node configuration is not "
        "available",
        origin="recalled: src/common/slurm_errno.c of Slurm 22",
        weight=0.95,
    ),
    _unstarted(
        "orte-init-failed",
        "failed-rendezvous",
        "It looks like orte_init failed for some reason",
        r"It looks like (?:orte|opal|MPI|ompi_mpi)_init failed for some reason",
        meaning="MPI could not start its processes.",
        fix="Read the lines below it; the same MPI must be installed on all hosts and in the "
        "container.",
        example="It looks like orte_init failed for some reason; your parallel process is",
        origin="recalled: orte/runtime of Open MPI 4",
        role=Role.SYMPTOM,
        weight=0.6,
    ),
    _unstarted(
        "ucx-unreachable",
        "failed-nccl-init",
        "Destination is unreachable",
        r"UCX +ERROR .{0,200}?Destination is unreachable",
        meaning="UCX found no way from one process to another one.",
        fix="`ucx_info -d` lists the transports; set UCX_TLS and UCX_NET_DEVICES to what all hosts "
        "have.",
        example="select.c:434  UCX  ERROR no active messages transport to <no debug data>: "
        "self/memory - Destination is unreachable",
        origin="recalled: src/ucp/wireup/select.c of UCX 1.12",
        weight=0.8,
    ),
    _unstarted(
        "hydra-ended-killed",
        "failed-killed",
        "TERMINATED WITH THE EXIT STRING: ",
        r"APPLICATION TERMINATED WITH THE EXIT STRING: Killed \(signal 9\)",
        meaning="A process of the MPI job was killed with SIGKILL: mostly by the kernel when "
        "memory "
        "ran out.",
        fix="`dmesg -T | grep -i 'killed process'` on the host that is named above it.",
        example="YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)",
        origin="recalled: the Hydra launcher of MPICH 3",
        role=Role.SYMPTOM,
        weight=0.6,
    ),
    _unstarted(
        "hydra-ended-crashed",
        "failed-signal",
        "TERMINATED WITH THE EXIT STRING: ",
        r"APPLICATION TERMINATED WITH THE EXIT STRING: (?P<name>[A-Z][\w ]{2,40}) \(signal "
        r"(?:4|6|7|8|11)\)",
        meaning="A process of the MPI job crashed: {name}.",
        fix="Run with PYTHONFAULTHANDLER=1 to get the Python stack of the crash.",
        example="YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Segmentation fault (signal 11)",
        origin="recalled: the Hydra launcher of MPICH 3",
        weight=0.7,
    ),
    _unstarted(
        "mpi-errors-fatal",
        "failed-exception",
        "An error occurred in MPI_",
        r"\*\*\* An error occurred in (?P<call>MPI_\w{1,40})",
        meaning="{call} failed in a process of the MPI job, and MPI ended it.",
        fix="Read the lines below it. In MPI_Init the same MPI must be installed on all hosts and "
        "in "
        "the container.",
        example="*** An error occurred in MPI_Init_thread",
        origin="recalled: ompi/errhandler of Open MPI 4",
        role=Role.SYMPTOM,
        weight=0.5,
        wrapper=True,
    ),
    _unstarted(
        "slurm-task-not-launched",
        "failed-exception",
        "srun: error: Task launch for ",
        r"srun: error: Task launch for \S{1,40} failed on node (?P<host>[\w.-]{1,100}): "
        r"(?P<what>.{1,"
        r"80})",
        meaning="Slurm could not start the tasks on {host}: {what}.",
        fix="Try again without that host (`--exclude`), and tell the administrator.",
        example="srun: error: Task launch for 36.0 failed on node node131: Job credential expired",
        origin="recalled: src/srun of Slurm 20",
        weight=0.7,
    ),
    _unstarted(
        "command-not-found",
        "failed-exception",
        ": command not found",
        r"^\S{1,200}: (?:line \d{1,6}: )?(?P<program>torchrun|deepspeed|accelerate|mpirun|mpiexec|"
        r"horovodrun|srun|python3?|nvcc|ninja|singularity|docker|nvidia-smi|conda): command not "
        r"found\s*$",
        meaning="The program {program} is not installed here or not in PATH.",
        fix="Activate the environment in the job's script, or write the whole path.",
        example="bash: line 1: torchrun: command not found",
        origin="made: a script that calls a missing program, bash 5.2",
        weight=0.7,
    ),
    _unstarted(
        "arguments-required",
        "failed-exception",
        "the following arguments are required",
        r": error: the following arguments are required: (?P<names>.{1,120})",
        meaning="The script was started without arguments that it needs: {names}.",
        fix="Add them; `--help` lists all.",
        example="train.py: error: the following arguments are required: --data",
        origin="made: argparse without a required argument, Python 3.11",
        weight=0.8,
        needle_tells=True,
    ),
    _unstarted(
        "module-not-runnable",
        "failed-exception",
        ": No module named ",
        r"^\S{0,200}python[\d.]{0,5}: No module named (?P<module>[\w.]{1,80})",
        meaning="Python has no module {module} to run.",
        fix="Activate the environment in the job's script, or install the package.",
        example="/usr/bin/python3: No module named torch.distributed.run",
        origin="made: python3 -m of a missing module, Python 3.11",
        weight=0.85,
    ),
    _unstarted(
        "mkl-threading-layer",
        "failed-exception",
        "MKL_THREADING_LAYER=INTEL is incompatible with",
        r"MKL_THREADING_LAYER=INTEL is incompatible with \S{1,60}",
        meaning="Two OpenMP libraries are loaded that exclude each other.",
        fix="`export MKL_THREADING_LAYER=GNU`, or import numpy before torch.",
        example="Error: mkl-service + Intel(R) MKL: MKL_THREADING_LAYER=INTEL is incompatible with "
        "libgomp.so.1 library.",
        origin="recalled: mkl-service 2.4",
        needle_tells=True,
    ),
)
