"""The commands that a diagnosis proposes fit the job's launcher and framework."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.case.model import Outcome, State
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.rules import advice
from tests.support.synthetic import Fault, Synthetic, make_case, synthetic_case


def job(command: str, launcher: str | None = None, **changes: Any) -> Measures:
    words = tuple(command.split())
    return Measures(make_case([], command=words, launcher=launcher, **changes))


@pytest.mark.parametrize(
    ("command", "expected", "launcher"),
    [
        ("torchrun --nproc-per-node 4 train.py", None, "torchrun"),
        ("/opt/env/bin/python3.11 -m torch.distributed.run train.py", None, "torchrun"),
        ("srun -N 2 torchrun train.py", "torchrun", "srun"),
        ("mpiexec -n 4 python train.py", "environment", "mpirun"),
        ("accelerate launch train.py", "torchrun", "accelerate"),
        ("deepspeed train.py", "environment", "deepspeed"),
        ("python train.py", "multiprocessing", "multiprocessing"),
        ("python train.py", "slurm", "slurm"),
        ("bash train.sh", "torchrun", "torchrun"),
        ("python -m train", None, None),
        ("python train.py -m", "environment", None),
        ("", None, None),
    ],
)
def test_the_launcher_is_the_outermost_one(
    command: str, expected: str | None, launcher: str | None
) -> None:
    assert advice.launcher(job(command, expected)) == launcher


@pytest.mark.parametrize(
    ("command", "expected", "how"),
    [
        ("torchrun train.py", "torchrun", "A=1 torchrun train.py"),
        (
            "torchrun --nnodes=2 train.py",
            "torchrun",
            "A=1 torchrun --nnodes=2 train.py  (on every node)",
        ),
        ("srun -N 2 python train.py", "slurm", "srun --export=ALL,A=1 -N 2 python train.py"),
        (
            "python train.py",
            "slurm",
            "srun --export=ALL,A=1 …  (or in the batch script: export A=1)",
        ),
        (
            "mpirun -n 4 python train.py",
            None,
            "mpirun -x A=1 -n 4 python train.py  (MPICH and Intel MPI: -genv A 1)",
        ),
        (
            "python train.py",
            "multiprocessing",
            'A=1 python train.py  (or, before torch is imported: os.environ["A"] = "1")',
        ),
        (
            "deepspeed train.py",
            None,
            "A=1 deepspeed train.py  (on several nodes: the same settings, a line each, in "
            "~/.deepspeed_env)",
        ),
        ("", None, "A=1 COMMAND"),
    ],
)
def test_variables_reach_the_ranks(command: str, expected: str | None, how: str) -> None:
    assert advice.environment(job(command, expected), A=1) == how


def test_values_are_quoted() -> None:
    assert advice.environment(job("python a.py"), A="1 2") == "A='1 2' python a.py"


def test_an_option_of_accelerate_overrides_the_threads() -> None:
    command = "accelerate launch --num-cpu-threads-per-process=1 train.py"
    assert "overrides" in advice.environment(job(command), OMP_NUM_THREADS=4)
    assert "overrides" not in advice.environment(job(command), NCCL_DEBUG="INFO")
    assert "overrides" not in advice.environment(job("accelerate launch a.py"), OMP_NUM_THREADS=4)


def test_several_hosts_are_mentioned() -> None:
    assert advice.environment(job("torchrun a.py", hosts=("a", "b")), A=1).endswith(
        "(on every node)"
    )


@pytest.mark.parametrize(
    ("command", "framework", "how"),
    [
        ("torchrun a.py", "torch", 'torch.autocast("cuda", torch.bfloat16)'),
        ("accelerate launch a.py", "torch", 'mixed_precision="bf16"'),
        ("deepspeed a.py", "torch", '"bf16": {"enabled": true}'),
        ("python a.py", "keras", 'set_global_policy("mixed_bfloat16")'),
    ],
)
def test_autocast(command: str, framework: str, how: str) -> None:
    assert how in advice.autocast(job(command, framework=framework))


def test_float16_needs_its_gradients_scaled() -> None:
    assert "GradScaler" in advice.autocast(job("torchrun a.py"), "float16")
    assert "GradScaler" not in advice.autocast(job("torchrun a.py"), "bfloat16")


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python -u train.py --lr 0.1", "train.py --lr 0.1"),
        ("/usr/bin/python3 -m pack.train", "-m pack.train"),
        ("python -X dev train.py", "SCRIPT …"),
        ("bash go.sh", "SCRIPT …"),
        ("torchrun train.py", "SCRIPT …"),
        ("", "SCRIPT …"),
    ],
)
def test_a_program_of_one_process_under_torchrun(command: str, expected: str) -> None:
    assert advice.under_torchrun(job(command), 4) == (
        f"torchrun --standalone --nproc-per-node=4 {expected}"
    )


def test_loader_arguments() -> None:
    assert advice.in_loader("pin_memory=True") == "`DataLoader(..., pin_memory=True)`"
    call = advice.in_loader("pin_memory=True", num_workers=4, sampler=None)
    assert call == "`DataLoader(..., pin_memory=True, num_workers=4, sampler=None)`"


@pytest.mark.parametrize("phase", ["forward", "other"])
@pytest.mark.parametrize("every", [1, 20])
def test_a_pid_is_named_only_while_its_process_runs(phase: str, every: int) -> None:
    milliseconds = 20.0 if every == 1 else 300.0
    fault = Fault(1, phase, milliseconds=milliseconds, start=10, every=every)
    case = synthetic_case(Synthetic(steps=200, faults=[fault]))
    over = replace(
        case,
        ranks=tuple(replace(rank, state=State.EXITED) for rank in case.ranks),
        job=replace(case.job, outcome=Outcome.COMPLETED, ended=case.observed),
    )
    now, later = (
        " ".join(fix.how for fix in diagnose(job).findings[0].fixes) for job in (case, over)
    )
    assert ("--pid 1001" in now) == ("py-spy" in now)
    assert "1001" not in later
    assert ("In the next run" in later) == ("py-spy" in later)
    assert phase == "forward" or "--pid PID" in later
