"""The faults that can be planted: their kinds, how they are read, and where they are impossible.

`docs/faults.md` shows every one with its command. Imports no framework.
"""

from collections.abc import Iterable

from mgpu_trainers import failure_faults, slow_faults
from mgpu_trainers.capabilities import Capability, Values
from mgpu_trainers.fault_spec import ALL, SpecError, parse_faults
from mgpu_trainers.planting import DelayFault, Fault
from mgpu_trainers.slow_faults import Slow
from mgpu_trainers.trainer import Trainer

GROUPS: dict[str, tuple[type[Fault], ...]] = {
    "Slow": (slow_faults.Slow, slow_faults.SlowLoader, slow_faults.Stall, slow_faults.Uneven),
    "Failing": (
        failure_faults.Hang,
        failure_faults.Kill,
        failure_faults.Raise,
        failure_faults.Exit,
        failure_faults.Nan,
        failure_faults.Leak,
    ),
    "Disagreeing": (
        failure_faults.SameData,
        failure_faults.Diverge,
        failure_faults.SkipStep,
        failure_faults.ExtraCall,
    ),
    "Surroundings": (failure_faults.Hog, failure_faults.HeavyStage, failure_faults.Missing),
}
"""The kinds of faults under the headings of the documentation."""

KINDS: dict[str, type[Fault]] = {kind.kind: kind for kinds in GROUPS.values() for kind in kinds}


def parse(texts: Iterable[str], ranks: int) -> tuple[Fault, ...]:
    """The faults that the texts describe, in a job of `ranks` ranks.

    Raises SpecError for a text that cannot be read, and for a rank that the job does not have.
    """
    faults = tuple(fault for text in texts for fault in parse_faults(text, KINDS))
    for fault in faults:
        if fault.rank >= ranks:
            raise SpecError(
                f"--fault {fault.kind}: there is no rank {fault.rank} among {ranks} "
                f"(the first is 0; rank=all is every rank)"
            )
    return faults


def check_faults(
    faults: Iterable[Fault],
    trainer: Trainer,
    ranks: int,
    values: Values,
    catalogue: Iterable[Trainer],
) -> None:
    """Raises SpecError for a fault that `trainer` leaves no place for.

    `values`: all options; `known`: trainers to name where the fault is possible.
    """
    trainers = tuple(catalogue)
    for fault in faults:
        if fault.needs is not None and not trainer.has(fault.needs):
            able = ", ".join(trainer.name for trainer in trainers if trainer.has(fault.needs))
            raise SpecError(f"--fault {fault.kind} is for {able}, not {trainer.name}")
        if fault.of_one_rank and fault.rank == ALL:
            raise SpecError(f"--fault {fault.kind} is of one rank, not of all")
        if reason := _find_obstacle(fault, trainer, ranks, values):
            raise SpecError(f"--fault {fault}: {reason}")


def _find_obstacle(fault: Fault, trainer: Trainer, ranks: int, values: Values) -> str | None:
    """Why the fault is impossible, as the rest of a sentence."""
    name = trainer.name
    if trainer.has(Capability.SERVERS):
        return _find_server_obstacle(fault, trainer, ranks)
    multiplies = isinstance(fault, DelayFault) and fault.factor is not None
    obstacles = {
        f"{name} takes kind=sleep or kind=gc": (
            fault.requirement is not None and not trainer.has(fault.requirement)
        ),
        f"in {name} the time that a rank itself takes for this phase is not known, so it cannot be "
        "multiplied; give ms=": multiplies and fault.slow_phase not in trainer.timed_phases,
        f"in {name} ranks work on the same batch, so none can take more samples than the others": (
            isinstance(fault, slow_faults.Uneven) and trainer.shares_batches
        ),
        f"{name} is one process, which divides each batch evenly": (
            isinstance(fault, slow_faults.Uneven) and not trainer.has(Capability.UNEVEN_BATCHES)
        ),
        f"rank 0 of {name} is the server, which takes no batches; name a worker, from rank=1 on": (
            trainer.has_server_rank and fault.rank == 0 and fault.is_in_batches
        ),
        f"{name} runs no Python of ours inside a step": (
            fault.is_inside_step and not trainer.has(Capability.STEP_HOOKS)
        ),
        "in fit the step is that of Keras; take --api loop": (
            fault.is_inside_step and values.get("api") == "fit"
        ),
        f"{name} is one process, which is rank=0; only nan and slow forward, backward and "
        "optimizer can be of another replica": (
            trainer.has(Capability.REPLICAS)
            and not fault.is_inside_step
            and fault.rank not in (0, ALL)
        ),
    }
    return next((reason for reason, applies in obstacles.items() if applies), None)


def _find_server_obstacle(fault: Fault, trainer: Trainer, ranks: int) -> str | None:
    """Why a fault is impossible with a chief, workers and parameter servers; None: possible."""
    if isinstance(fault, failure_faults.Kill):
        return None
    if fault.rank == ALL or fault.rank >= ranks:
        return f"parameter servers (rank={ranks} and up) can only be killed"
    if isinstance(fault, Slow) and fault.phase == "forward" and fault.ms:
        return None
    return (
        f"in {trainer.name} a worker runs no Python of ours: it takes kill, and slow with "
        "phase=forward,ms="
    )


def find_heavy_stage(faults: Iterable[Fault]) -> int | None:
    """The stage of a pipeline that has most of the layers; None: they are divided evenly."""
    heavy = (fault.rank for fault in faults if isinstance(fault, failure_faults.HeavyStage))
    return next(heavy, None)
