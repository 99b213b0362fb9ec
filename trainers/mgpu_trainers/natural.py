"""What trainers of TensorFlow leave no place for: faults, and options side by side.

Imports no framework.
"""

from collections.abc import Iterable, Mapping

from mgpu_trainers.fault import Fault
from mgpu_trainers.mishaps import Kill, Nan, Uneven
from mgpu_trainers.options import UsageError, Value
from mgpu_trainers.slowness import Late, Slow, Stall
from mgpu_trainers.specs import ALL, SpecError

Values = Mapping[str, Value | None]

IN_GRAPH = ("forward", "backward", "optimizer")
"""Phases that TensorFlow runs without Python."""


def population(trainer: str, ranks: int, values: Values) -> int:
    """How many ranks faults can name: replicas of one process, and servers after workers, too."""
    if trainer == "tf-ps":
        return ranks + int(values["servers"] or 0)
    return int(values.get("replicas") or ranks)


def check(planted: Iterable[Fault], trainer: str, ranks: int, values: Values) -> None:
    """Raises SpecError for a fault, or UsageError for options, that the trainer cannot have."""
    if not trainer.startswith("tf-"):
        return
    if values.get("api") == "fit" and values["accumulate"] != 1:
        raise UsageError(
            "--accumulate needs --api loop: in fit, Keras 3 fails to add gradients up under a "
            "strategy (keras issue 20582)",
            "accumulate",
        )
    for fault in planted:
        if why := _unnatural(fault, trainer, ranks, values):
            raise SpecError(f"--fault {fault}: {why}")


def _unnatural(fault: Fault, trainer: str, ranks: int, values: Values) -> str | None:
    """Why the fault cannot be, as the rest of a sentence."""
    in_graph = isinstance(fault, Nan) or (isinstance(fault, Slow) and fault.phase in IN_GRAPH)
    if trainer == "tf-ps":
        return _of_servers(fault, ranks)
    wrong = {
        "trainers of TensorFlow take kind=sleep or kind=gc": (
            isinstance(fault, Stall) and fault.how == "save"
        ),
        f"{trainer} is one process, which divides each batch evenly": (
            isinstance(fault, Uneven) and trainer != "tf-multiworker"
        ),
        "TensorFlow does not tell what this takes by itself; give ms=": (
            isinstance(fault, Late) and fault.factor and not _measured(fault)
        ),
        "a TPU runs no Python of ours inside a step": in_graph and trainer == "tf-tpu",
        "in fit the step is that of Keras; take --api loop": (
            in_graph and values.get("api") == "fit"
        ),
        "tf-mirrored is one process, which is rank=0; only nan and slow forward, backward and "
        "optimizer can be of another replica": (
            trainer == "tf-mirrored" and not in_graph and fault.rank not in (0, ALL)
        ),
    }
    return next((why for why, applies in wrong.items() if applies), None)


def _of_servers(fault: Fault, ranks: int) -> str | None:
    if isinstance(fault, Kill):
        return None
    if fault.rank == ALL or fault.rank >= ranks:
        return f"parameter servers (rank={ranks} and up) can only be killed"
    if isinstance(fault, Slow) and fault.phase == "forward" and fault.ms:
        return None
    return (
        "in tf-ps a worker runs no Python of ours: it takes kill, and slow with phase=forward,ms="
    )


def _measured(fault: Late) -> bool:
    return isinstance(fault, Slow) and fault.phase in ("forward", "backward")
