"""Commands and code for the job's launcher and framework."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from mgpu_probes.outside.jobs.command_lines import is_python_command
from mgpu_probes.outside.jobs.launchers import name_launcher

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.case.model import Case, Rank, State
from mgpu_doctor.findings import Fix

LARGER_BATCH = (
    "The batch per update grows: raise the learning rate with it (linearly for SGD, by the square "
    "root for Adam), warm up for a few hundred updates, and watch the validation loss."
)
"""The caveat of every fix that enlarges the global batch (Goyal et al. 2017, arXiv 1706.02677;
Malladi et al. 2022, arXiv 2205.10287, for Adam)."""
PLAN_MEMORY = Fix(
    "plan-memory",
    "Find settings that fit",
    "`mgpu-doctor plan` with your model and this GPU ranks what helps: smaller micro-batches with "
    "accumulation, activation checkpointing, bf16, sharding.",
)
EVEN_BATCHES = Fix(
    "even-batches",
    "Give every rank the same number of steps",
    "Use `DistributedSampler(dataset, drop_last=True)`, or, with DistributedDataParallel only, "
    "wrap the loop in `with torch.distributed.algorithms.join.Join([model]):`. Where ranks decide "
    "by themselves when to stop (a time limit, early stopping), let rank 0 decide and broadcast "
    "it.",
)

ALIVE = (State.RUNNING, State.WAITING)


def is_alive(case: Case, pid: int | None) -> bool:
    """Whether this process of the job runs, so that a fix may name it: after the job, the pid is
    nobody's or another process's."""
    return pid is not None and any(
        rank.pid == pid and rank.state in ALIVE for rank in (*case.ranks, *case.earlier)
    )


def on_process(case: Case, rank: Rank | None, command: str) -> str:
    """A command with the pid of a rank for PID. If the rank no longer runs, PID stays, and the
    command is for the next run."""
    if rank is not None and is_alive(case, rank.pid):
        return command.replace("PID", str(rank.pid))
    return command


def has_living_rank(case: Case) -> bool:
    return any(is_alive(case, rank.pid) for rank in case.ranks)


def next_time(case: Case) -> str:
    """`While it runs`, or `In the next run` if the job is over."""
    return "While it runs" if has_living_rank(case) else "In the next run"


PLAIN_FLAGS = ("-u", "-O", "-OO", "-B", "-q", "-v", "-I", "-E", "-s", "-S")
"""Python's options without a value."""


def launcher(measures: Measures) -> str | None:
    """The launcher that the command names, else the one that the ranks report; None if the command
    starts the training itself, or the launcher is unknown."""
    name = name_launcher(measures.case.job.command)
    if name is not None:
        return name
    reported = measures.case.job.launcher
    return reported if reported in ("torchrun", "multiprocessing", "slurm") else None


def environment(measures: Measures, **variables: object) -> str:
    """How to start this job with environment variables set, so that they reach every rank."""
    by = launcher(measures)
    command = measures.case.job.command
    program, rest = shlex.join(command[:1]), shlex.join(command[1:])
    values = {name: shlex.quote(str(value)) for name, value in variables.items()}
    settings = " ".join(f"{name}={value}" for name, value in values.items())
    exported = ",".join(["--export=ALL", *(f"{name}={value}" for name, value in values.items())])
    if by == "srun":
        return f"{program} {exported} {rest}"
    if by == "slurm":
        return f"srun {exported} …  (or in the batch script: export {settings})"
    if by == "mpirun":
        passed = " ".join(f"-x {name}={value}" for name, value in values.items())
        general = " ".join(f"-genv {name} {value}" for name, value in values.items())
        return f"{program} {passed} {rest}  (MPICH and Intel MPI: {general})"
    return f"{settings} {shlex.join(command) or 'COMMAND'}{_besides(measures, by, variables)}"


def _besides(measures: Measures, by: str | None, variables: Mapping[str, object]) -> str:
    """What else must be done for variables before a command to reach every rank."""
    command = measures.case.job.command
    if by == "multiprocessing":
        lines = "; ".join(f'os.environ["{name}"] = "{value}"' for name, value in variables.items())
        return f"  (or, before torch is imported: {lines})"
    if by == "deepspeed":
        return "  (on several nodes: the same settings, a line each, in ~/.deepspeed_env)"
    threads = "--num_cpu_threads_per_process"
    if by == "accelerate" and "OMP_NUM_THREADS" in variables and _has(command, threads):
        return f"  (and without {threads}, which overrides it)"
    if _has(command, "--nnodes") or len(measures.case.job.hosts) > 1:
        return "  (on every node)"
    return ""


def under_torchrun(measures: Measures, ranks: int) -> str:
    """The command that starts this program with one process for each of `ranks` devices."""
    command = list(measures.case.job.command)
    if launcher(measures) is None and command and is_python_command((command.pop(0),)):
        while command and command[0] in PLAIN_FLAGS:
            command.pop(0)
        is_script = command and (command[0] == "-m" or not command[0].startswith("-"))
    else:
        is_script = False
    rest = shlex.join(command) if is_script else "SCRIPT …"
    return f"torchrun --standalone --nproc-per-node={ranks} {rest}"


def in_loader(arguments: str = "", **values: object) -> str:
    """Returns the loader's call, marked as code. Takes arguments as text, as values, or both:
    `in_loader("pin_memory=True", num_workers=4)`."""
    given = [arguments] if arguments else []
    given += [f"{name}={value!r}" for name, value in values.items()]
    return f"`DataLoader(..., {', '.join(given)})`"


def autocast(measures: Measures, dtype: str = "bfloat16") -> str:
    """How to compute in a shorter type (bfloat16 or float16) while weights stay float32."""
    short = {"bfloat16": "bf16", "float16": "fp16"}[dtype]
    by = launcher(measures)
    if measures.case.job.framework in ("keras", "tensorflow"):
        return (
            f'`keras.mixed_precision.set_global_policy("mixed_{dtype}")`, before the model is made'
        )
    if by == "accelerate":
        option = f"`accelerate launch --mixed_precision {short}`"
        return f'`Accelerator(mixed_precision="{short}")`, or {option}'
    if by == "deepspeed":
        return f'in the DeepSpeed configuration: `"{short}": {{"enabled": true}}`'
    scaled = (
        "; small gradients vanish in float16: `scaler = torch.amp.GradScaler(); "
        "scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()`"
        if dtype == "float16"
        else ""
    )
    return (
        f'`with torch.autocast("cuda", torch.{dtype}): loss = criterion(model(x), y)`, around '
        f"forward and loss, not around backward{scaled}. In Lightning: "
        f'`Trainer(precision="{short if dtype == "bfloat16" else 16}-mixed")`; in transformers: '
        f"`TrainingArguments({short}=True)`."
    )


def _has(command: tuple[str, ...], option: str) -> bool:
    wanted = option.replace("_", "-")
    return any(word.partition("=")[0].replace("_", "-") == wanted for word in command)
