"""The trainers by name: what each is, which options it takes, and the command that starts it.

Imports no framework, so that a list or a `--help` costs nothing.
"""

import argparse
import difflib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NoReturn

from mgpu_trainers import cluster, faults, natural, specs, tf_options, together
from mgpu_trainers import options as own
from mgpu_trainers.options import PRACTICES, RANKS, TRAINING, Option, UsageError, Value
from mgpu_trainers.specs import SpecError

__all__ = ["RANKS", "TRAINERS", "TRAINING", "Option", "Trainer", "UsageError"]


@dataclass(frozen=True)
class Trainer:
    """`launcher` python: it is one process, which drives all the devices by itself."""

    name: str
    module: str
    framework: Literal["torch", "tensorflow"]
    summary: str
    options: tuple[Option, ...]
    launcher: Literal["torchrun", "python", "apart", "cluster", "ray"] = "torchrun"

    @property
    def ranks(self) -> Option:
        """How many processes it takes, with the default of this trainer."""
        return replace(RANKS, default={"python": 1, "apart": 3}.get(self.launcher, RANKS.default))


_PARTED = (*TRAINING, *PRACTICES)
_ALONE = (*(own.AUTO_BATCH if one.name == "batch" else one for one in _PARTED), own.COMPILE)
"""Of ranks that hold the whole model."""
_GROUP = (*_ALONE, own.NO_SYNC, own.TIMEOUT)
_SHARDED = (*_PARTED, own.NO_SYNC, own.TIMEOUT)
_WHOLE = (*_PARTED, own.TIMEOUT)
_DDP = (*_GROUP, own.BUCKET, own.COMPRESS)
_LOCAL = (*_GROUP, own.BUCKET, own.SYNC_EVERY, own.SYNC_FIRST)


def _torch(
    name: str,
    summary: str,
    options: tuple[Option, ...],
    launcher: Literal["torchrun", "python", "apart"] = "torchrun",
) -> Trainer:
    module = f"mgpu_trainers.pytorch.{name.replace('-', '_')}"
    return Trainer(f"torch-{name}", module, "torch", summary, options, launcher)


def _tf(
    name: str, summary: str, options: tuple[Option, ...], launcher: Literal["python", "cluster"]
) -> Trainer:
    module = f"mgpu_trainers.tensorflow.{name}"
    return Trainer(f"tf-{name}", module, "tensorflow", summary, options, launcher)


TRAINERS = (
    _torch("ddp", "PyTorch DistributedDataParallel: gloo on CPUs, NCCL on GPUs", _DDP),
    _torch("fsdp", "fully_shard (FSDP2): weights, gradients and optimizer are divided", _SHARDED),
    _torch("zero1", "DDP with ZeroRedundancyOptimizer: the optimizer's states are divided", _DDP),
    _torch("localsgd", "post-local SGD: each rank for itself, now and then averaged", _LOCAL),
    _torch(
        "diloco",
        "DiLoCo: each rank for itself; now and then an outer optimizer takes their average way",
        (*_ALONE, own.TIMEOUT, own.SYNC_EVERY),
    ),
    _torch(
        "ps",
        "asynchronous parameter server: rank 0 has the weights, the others learn at their own pace",
        (*_ALONE, own.TIMEOUT),
        "apart",
    ),
    _torch("tp", "tensor parallel: each layer is divided among all ranks", _WHOLE),
    _torch(
        "tp-fsdp",
        "layers divided inside groups of ranks, fully_shard between the groups",
        (*_SHARDED, own.TP),
    ),
    _torch(
        "pp",
        "pipeline parallel: the model's layers on the ranks, which pass micro-batches on",
        (*_WHOLE, own.SCHEDULE, own.MICRO_BATCHES),
    ),
    _torch("single", "one process, one device: what the others are held against", _ALONE, "python"),
    _torch("dp", "DataParallel: one process, each batch divided over its GPUs", _PARTED, "python"),
    _torch(
        "mp",
        "naive model parallel: one process, the model's layers on several GPUs",
        (*_PARTED, own.STAGES),
        "python",
    ),
    Trainer(
        "ray-torch",
        "mgpu_trainers.pytorch.ray_ddp",
        "torch",
        "torch-ddp in workers of Ray Train, on a Ray of its own on this machine",
        _DDP,
        "ray",
    ),
    _tf("single", "TensorFlow on one device", tf_options.SINGLE, "python"),
    _tf(
        "mirrored",
        "MirroredStrategy: one process, a replica on each of its GPUs, or on virtual CPUs",
        tf_options.MIRRORED,
        "python",
    ),
    _tf(
        "multiworker",
        "MultiWorkerMirroredStrategy: several processes, gradients are averaged",
        tf_options.MULTIWORKER,
        "cluster",
    ),
    _tf(
        "ps",
        "ParameterServerStrategy: workers learn at their own pace from weights on servers",
        tf_options.PS,
        "cluster",
    ),
    _tf("tpu", "TPUStrategy, where there is a TPU", tf_options.ON_TPU, "python"),
)


_NO_AUTO = {
    "torch": "{} has no --batch auto: to try a batch would take all its ranks or devices; give a "
    "number",
    "tensorflow": "{} has no --batch auto: TensorFlow does not tell what a process may still take; "
    "give a number",
}

_HOROVOD = (
    "Horovod is not built in: 0.28.1, its last release, does not compile with torch 2.13. In its "
    "source, set CMAKE_CXX_STANDARD to 17 in horovod/torch/CMakeLists.txt, then "
    "`HOROVOD_WITH_GLOO=1 pip install --no-build-isolation .`; a script of your own starts with "
    "`mgpu-doctor run -- horovodrun -np 2 python SCRIPT`, which nobody has tried"
)


def find(name: str) -> Trainer:
    """The trainer of that name; raises UsageError for a name that is none."""
    for trainer in TRAINERS:
        if trainer.name == name:
            return trainer
    if "horovod" in name.split("-"):
        raise UsageError(_HOROVOD)
    known = ", ".join(trainer.name for trainer in TRAINERS)
    raise UsageError(f"there is no trainer {name!r}: choose one of {known}")


def _near(given: str, known: Iterable[str]) -> str:
    """The option that may have been meant, to be put behind one that there is not."""
    found = difflib.get_close_matches(given.replace("_", "-"), list(known), n=1, cutoff=0.75)
    return f" (there is --{found[0]})" if found else ""


def missing(trainer: Trainer) -> str | None:
    """What the trainer needs and is not installed here, as the rest of a sentence."""
    if importlib.util.find_spec(trainer.framework) is None:
        extra = f"'mgpu-doctor[{trainer.framework}]'"
        return f"needs {trainer.framework}, which is not installed here; try `pip install {extra}`"
    if trainer.launcher == "ray" and importlib.util.find_spec("ray") is None:
        return "needs Ray Train, which is not installed here; try `pip install 'ray[train]'`"
    return None


def command(trainer: Trainer, ranks: int | None, options: Mapping[str, object]) -> list[str]:
    """The command line that starts `trainer` with this interpreter; ranks None: its default.

    `options` maps an option's name to its value, to None for its default, or to several values
    where it is repeatable. The rendezvous takes any free port, so that jobs can run side by side.
    Raises UsageError for an unknown option, a bad value, values that do not go together, or a
    fault that cannot be planted.
    """
    values = check(trainer, ranks, options)
    number = _number(trainer, ranks)
    together.check(trainer.name, natural.population(trainer.name, number, values), values)
    program = [sys.executable, "-m"]
    if trainer.launcher == "torchrun":
        program += ["torch.distributed.run", "--standalone", "--nproc-per-node"]
        program += [str(number), "-m"]
    elif trainer.launcher == "apart":
        program += ["mgpu_trainers.apart", "--ranks", str(number)]
    elif trainer.launcher == "ray":
        program += ["mgpu_trainers.pytorch.ray_cluster", "--ranks", str(number)]
    elif trainer.launcher == "cluster":
        program += ["mgpu_trainers.tensorflow.launcher", "--workers", str(number)]
        program += ["--servers", str(values.get("servers", 0))]
    program += [trainer.module, *_arguments(options)]
    if values["batch"] == own.AUTO:
        search = ["mgpu_trainers.largest", trainer.name, "--ranks", str(number), "--"]
        program = [sys.executable, "-m", *search, *program]
    return program


def check(
    trainer: Trainer, ranks: int | None, options: Mapping[str, object]
) -> dict[str, Value | None]:
    """Each option by itself; what those that are no faults are, defaults included.

    Raises UsageError as `command` does.
    """
    number = _number(trainer, ranks)
    known = {option.name: option for option in trainer.options}
    values = {option.name: option.default for option in trainer.options}
    for given, value in options.items():
        option = known.get(given.replace("_", "-"))
        if option is None:
            raise UsageError(f"{trainer.name} has no option --{given}{_near(given, known)}", given)
        for text in _texts(value):
            if option.name == "batch" and text == own.AUTO and not option.words:
                raise UsageError(_NO_AUTO[trainer.framework].format(trainer.name), "batch")
            values[option.name] = option.read(text)
    try:
        named = natural.population(trainer.name, number, values)
        planted = faults.parse(_texts(options.get("fault")), named)
        faults.check(planted, trainer.name)
        natural.check(planted, trainer.name, number, values)
    except SpecError as error:
        raise UsageError(str(error), "fault") from None
    return values


def arguments(
    trainer: Trainer, argv: Sequence[str] | None = None, ranks: int | None = None
) -> argparse.Namespace:
    """What the trainer itself was called with; ends the process with 2 on wrong usage.

    `ranks`: how many there are; None: as the launcher says."""
    parser = parser_of(trainer)
    given = parser.parse_args(argv)
    try:
        if given.batch == own.AUTO:
            raise UsageError(
                "--batch auto is found before ranks start: put `python -m mgpu_trainers.largest "
                f"{trainer.name} --ranks N --` in front of the whole command"
            )
        ranks = _number(trainer, _world(trainer) if ranks is None else ranks)
        values = check(trainer, ranks, vars(given))
        together.check(trainer.name, natural.population(trainer.name, ranks, values), values)
    except UsageError as error:
        parser.error(str(error))
    return given


def parser_of(trainer: Trainer) -> argparse.ArgumentParser:
    """Of the trainer's own options, each by itself."""
    parser = _Parser(prog=f"python -m {trainer.module}", description=trainer.summary)
    for option in trainer.options:
        default = f" (default {option.default})" if option.default is not None else ""
        parser.add_argument(
            f"--{option.name}",
            type=_one_of(option) if option.words else option.type,
            default=[] if option.repeatable else option.default,
            action="append" if option.repeatable else "store",
            choices=option.choices or None,
            help=option.help + default,
        )
    return parser


def _one_of(option: Option) -> Callable[[str], Value]:
    def read(text: str) -> Value:
        try:
            return option.read(text)
        except UsageError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def _number(trainer: Trainer, ranks: int | None) -> int:
    number = RANKS.read(str(trainer.ranks.default if ranks is None else ranks))
    if trainer.launcher == "python" and number != 1:
        several = any(option.name == "replicas" for option in trainer.options)
        instead = "; take --replicas" if several else ""
        raise UsageError(
            f"{trainer.name} is one process: --ranks can only be 1{instead}", RANKS.name
        )
    return int(number)


def _world(trainer: Trainer) -> int | None:
    """How many ranks were started, as the launcher says; None: it does not."""
    if trainer.launcher == "cluster":
        return cluster.workers()
    world = os.environ.get("WORLD_SIZE") if trainer.launcher != "python" else None
    return int(world) if world else None


def _arguments(options: Mapping[str, object]) -> Iterable[str]:
    for name, value in options.items():
        for text in _texts(value):
            yield from (f"--{name.replace('_', '-')}", text)


def _texts(value: object) -> list[str]:
    if value is None:
        return []
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [str(each) for each in value]
    return [str(value)]


def fault_keys() -> dict[str, tuple[str, ...]]:
    """The kinds of faults that can be planted, each with the keys it takes."""
    return {kind: tuple(specs.keys(fault)) for kind, fault in faults.KINDS.items()}


def fault_defaults(kind: str) -> dict[str, str]:
    """What each key of a kind is when it is not given; empty: nothing."""
    return specs.defaults(faults.KINDS[kind])
