"""The trainers by name: what each is and can do, and the command that starts it.

Called by the doctor's command line, its launch form, and by the trainers to read their own options.
Imports no framework, so that a list or a `--help` costs nothing.
"""

import argparse
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NoReturn

from mgpu_trainers import cluster, faults, torch_versions
from mgpu_trainers.capabilities import (
    PHASES,
    Batches,
    Framework,
    Launcher,
    UsageError,
    Value,
    suggest,
)
from mgpu_trainers.capabilities import Capability as Has
from mgpu_trainers.fault_spec import SpecError, list_keys
from mgpu_trainers.option_checks import check_fit, check_options
from mgpu_trainers.options import AUTO, RANKS, Option
from mgpu_trainers.torch_versions import TorchPart
from mgpu_trainers.trainer import Trainer

__all__ = ["RANKS", "TRAINERS", "Framework", "Option", "Trainer", "UsageError"]

_TORCH = {
    *(Has.GLOBAL_BATCH, Has.ACCUMULATION, Has.THREADS, Has.DEVICE_CHOICE),
    *(Has.SAVING_STALLS, Has.STEP_HOOKS),
}
"""Capabilities of every PyTorch trainer."""
_GROUP = {*_TORCH, Has.TIMEOUT, Has.COLLECTIVES, Has.RANKS_MEET, Has.RENDEZVOUS}
"""Capabilities of trainers whose ranks form a process group."""
_SYNC = {*_GROUP, Has.STEP_COLLECTIVES}
"""Capabilities of trainers whose ranks communicate in each step."""
_DATA_PARALLEL = {Has.OWN_DATA, Has.UNEVEN_BATCHES}
_DDP = {*_SYNC, *_DATA_PARALLEL, Has.WHOLE_MODEL, Has.DDP, Has.COMPRESSION, Has.LATE_SYNC}
_LOCAL = {*_GROUP, *_DATA_PARALLEL, Has.WHOLE_MODEL, Has.LOCAL_STEPS}
_FSDP = (TorchPart.FULLY_SHARD, TorchPart.GLOO_AVERAGE)
_TF_HOST = {Has.GLOBAL_BATCH, Has.ACCUMULATION, Has.THREADS, Has.DEVICE_CHOICE, Has.STEP_HOOKS}
"""What trainers of TensorFlow have on CPUs and GPUs."""


def _torch(
    name: str,
    summary: str,
    capabilities: set[Has],
    *,
    launcher: Launcher = Launcher.TORCHRUN,
    batches: Batches = Batches.PER_RANK,
    untimed: tuple[str, ...] = (),
    least_ranks: int = 1,
    default_ranks: int = 2,
    torch_parts: tuple[TorchPart, ...] = (),
) -> Trainer:
    return Trainer(
        name=f"torch-{name}",
        module=f"mgpu_trainers.pytorch.{name.replace('-', '_')}",
        framework=Framework.TORCH,
        launcher=launcher,
        summary=summary,
        capabilities=frozenset(capabilities),
        batches=batches,
        timed_phases=tuple(phase for phase in PHASES if phase not in untimed),
        least_ranks=least_ranks,
        default_ranks=1 if launcher is Launcher.PYTHON else default_ranks,
        torch_parts=torch_parts,
    )


def _tensorflow(
    name: str,
    summary: str,
    capabilities: set[Has],
    launcher: Launcher = Launcher.PYTHON,
) -> Trainer:
    return Trainer(
        name=f"tf-{name}",
        module=f"mgpu_trainers.tensorflow.tf_{name}",
        framework=Framework.TENSORFLOW,
        launcher=launcher,
        summary=summary,
        capabilities=frozenset(capabilities),
        timed_phases=("forward", "backward"),
        default_ranks=1 if launcher is Launcher.PYTHON else 2,
    )


TRAINERS = (
    _torch(
        "ddp",
        "PyTorch DistributedDataParallel: gloo on CPUs, NCCL on GPUs",
        {*_DDP, Has.EQUAL_COPIES},
    ),
    _torch(
        "fsdp",
        "fully_shard (FSDP2): weights, gradients and optimizer states are sharded",
        {*_SYNC, *_DATA_PARALLEL, Has.LATE_SYNC},
        untimed=("forward", "backward"),
        torch_parts=_FSDP,
    ),
    _torch("zero1", "DDP with ZeroRedundancyOptimizer: optimizer states are sharded", _DDP),
    _torch(
        "localsgd",
        "post-local SGD: ranks train on their own and average their weights now and then",
        {*_LOCAL, Has.DDP, Has.LATE_SYNC, Has.LOCAL_START},
    ),
    _torch(
        "diloco",
        "DiLoCo: ranks train on their own; now and then an outer optimizer takes their average "
        "change",
        _LOCAL,
    ),
    _torch(
        "ps",
        "asynchronous parameter server: rank 0 has the weights, the others train at their own pace",
        {*_TORCH, *_DATA_PARALLEL, Has.WHOLE_MODEL, Has.TIMEOUT},
        launcher=Launcher.APART,
        batches=Batches.PER_WORKER,
        untimed=("optimizer",),
        least_ranks=2,
        default_ranks=3,
    ),
    _torch(
        "tp",
        "tensor parallel: each layer is divided among all ranks",
        {*_SYNC, Has.SPLIT_LAYERS},
        batches=Batches.SHARED,
        untimed=("forward", "backward"),
    ),
    _torch(
        "tp-fsdp",
        "tensor parallel inside groups of ranks, fully_shard between the groups",
        {*_SYNC, Has.SPLIT_LAYERS, Has.GROUPS, Has.LATE_SYNC},
        batches=Batches.PER_GROUP,
        untimed=("forward", "backward"),
        torch_parts=_FSDP,
    ),
    _torch(
        "pp",
        "pipeline parallel: each rank has some layers and passes micro-batches on",
        {*_SYNC, Has.PIPELINE},
        batches=Batches.SHARED,
        untimed=("backward",),
        least_ranks=2,
        torch_parts=(TorchPart.STAGE_SHAPES, TorchPart.GLOO_BATCHES),
    ),
    _torch(
        "single",
        "one process, one device: the baseline",
        {*_TORCH, Has.WHOLE_MODEL, Has.UNEVEN_BATCHES},
        launcher=Launcher.PYTHON,
    ),
    _torch(
        "dp",
        "DataParallel: one process divides each batch over its GPUs",
        {*_TORCH, Has.UNEVEN_BATCHES},
        launcher=Launcher.PYTHON,
    ),
    _torch(
        "mp",
        "naive model parallel: one process, the model's layers on several GPUs",
        {*_TORCH, Has.UNEVEN_BATCHES, Has.DEVICE_STAGES},
        launcher=Launcher.PYTHON,
    ),
    Trainer(
        name="ray-torch",
        module="mgpu_trainers.pytorch.ray_ddp",
        framework=Framework.TORCH,
        launcher=Launcher.RAY,
        summary="torch-ddp in workers of Ray Train, on a Ray of its own on this machine",
        capabilities=frozenset({*_DDP, Has.EQUAL_COPIES} - {Has.RENDEZVOUS}),
    ),
    _tensorflow("single", "TensorFlow on one device", {*_TF_HOST, Has.KERAS_FIT}),
    _tensorflow(
        "mirrored",
        "MirroredStrategy: one process, a replica on each of its GPUs, or on virtual CPUs",
        {*_TF_HOST, Has.KERAS_FIT, Has.REPLICAS},
    ),
    _tensorflow(
        "multiworker",
        "MultiWorkerMirroredStrategy: several processes average their gradients",
        {
            *(*_TF_HOST, Has.TIMEOUT, Has.UNEVEN_BATCHES),
            *(Has.RANKS_MEET, Has.RENDEZVOUS),
        },
        Launcher.CLUSTER,
    ),
    _tensorflow(
        "ps",
        "ParameterServerStrategy: workers train at their own pace from weights on servers",
        {Has.THREADS, Has.SERVERS},
        Launcher.CLUSTER,
    ),
    _tensorflow("tpu", "TPUStrategy, where there is a TPU", {Has.ACCUMULATION, Has.TPU}),
)
"""All trainers, in the order of `train --list`. A new strategy is an entry here and its module."""


_NO_AUTO = {
    Framework.TORCH: "trying a batch would take all its ranks or devices",
    Framework.TENSORFLOW: "TensorFlow does not say how much memory a process may still take",
}
"""Why a trainer has no `--batch auto`."""

_HOROVOD = (
    "Horovod is not built in: 0.28.1, its last release, does not compile with torch 2.13. In its "
    "source, set CMAKE_CXX_STANDARD to 17 in horovod/torch/CMakeLists.txt, then "
    "`HOROVOD_WITH_GLOO=1 pip install --no-build-isolation .`; start a script of your own with "
    "`mgpu-doctor run -- horovodrun -np 2 python SCRIPT`, which is untested"
)


def find(name: str) -> Trainer:
    """The trainer of that name; raises UsageError for an unknown name."""
    for trainer in TRAINERS:
        if trainer.name == name:
            return trainer
    if "horovod" in name.split("-"):
        raise UsageError(_HOROVOD)
    names = [trainer.name for trainer in TRAINERS]
    hint, choices = suggest(name, names, most=3), f": choose one of {', '.join(names)}"
    raise UsageError(f"there is no trainer {name!r}{hint or choices}")


def missing(trainer: Trainer, options: Mapping[str, object] | None = None) -> str | None:
    """What the trainer needs but is not installed, as the rest of a sentence; None: nothing.

    `options`: values that were given, of which some need more than the trainer itself.
    """
    framework = trainer.framework.value
    if importlib.util.find_spec(framework) is None:
        extra = f"'mgpu-doctor[{framework}]'"
        return f"needs {framework}, which is not installed here; try `pip install {extra}`"
    if trainer.launcher is Launcher.RAY and importlib.util.find_spec("ray") is None:
        return "needs Ray Train, which is not installed here; try `pip install 'ray[train]'`"
    return _find_lack(trainer, options or {})


def _find_lack(trainer: Trainer, options: Mapping[str, object]) -> str | None:
    """What the installed torch lacks, as `missing`."""
    if trainer.framework is not Framework.TORCH:
        return None
    chosen = {name.replace("_", "-"): _last(value) for name, value in options.items()}
    return torch_versions.find_lack(
        trainer.torch_parts,
        chosen,
        version=torch_versions.installed_version(),
        on_cpus=torch_versions.trains_on_cpus(chosen.get("device", AUTO)),
    )


def command(trainer: Trainer, ranks: int | None, options: Mapping[str, object]) -> list[str]:
    """The command line that starts `trainer` with this interpreter; ranks None: its default.

    `options` maps an option's name to its value, to None for its default, or to several values
    where it is repeatable. The rendezvous takes any free port, so that jobs can run side by side.
    Raises UsageError for an unknown option, a bad value, values that do not go together, or a
    fault that cannot be planted.
    """
    values = check(trainer, ranks, options)
    number = _read_ranks(trainer, ranks)
    program = [sys.executable, "-m", *_launch(trainer, number, values), trainer.module]
    program += _spell_options(options)
    if values["batch"] == AUTO:
        search = ["mgpu_trainers.largest", trainer.name, "--ranks", str(number), "--"]
        program = [sys.executable, "-m", *search, *program]
    return program


def _launch(trainer: Trainer, ranks: int, values: Mapping[str, Value | None]) -> list[str]:
    """The words between the interpreter's `-m` and the trainer's module."""
    number = str(ranks)
    return {
        Launcher.PYTHON: [],
        Launcher.TORCHRUN: [
            *("torch.distributed.run", "--standalone", "--nproc-per-node", number, "-m")
        ],
        Launcher.APART: ["mgpu_trainers.apart", "--ranks", number],
        Launcher.RAY: ["mgpu_trainers.pytorch.ray_cluster", "--ranks", number],
        Launcher.CLUSTER: [
            *("mgpu_trainers.tensorflow.launcher", "--workers", number),
            *("--servers", str(values.get("servers", 0))),
        ],
    }[trainer.launcher]


def check(
    trainer: Trainer, ranks: int | None, options: Mapping[str, object]
) -> dict[str, Value | None]:
    """The values of all options that are no faults, defaults included; raises as `command`."""
    number = _read_ranks(trainer, ranks)
    options_by_name = {option.name: option for option in trainer.options}
    values = {option.name: option.default for option in options_by_name.values()}
    for name, value in options.items():
        option = options_by_name.get(name.replace("_", "-"))
        if option is None:
            known = [*options_by_name, "ranks", "fault"]
            hint = suggest(name.replace("_", "-"), known).replace("mean ", "mean --")
            raise UsageError(f"{trainer.name} has no option --{name}{hint}", name)
        for text in _list_texts(value):
            if option.name == "batch" and text == AUTO and not option.words:
                why = _NO_AUTO[trainer.framework]
                raise UsageError(
                    f"{trainer.name} has no --batch auto: {why}; give a number", "batch"
                )
            values[option.name] = option.read(text)
    population = trainer.count_faulty_ranks(number, values)
    check_fit(values)
    try:
        planted = faults.parse(_list_texts(options.get("fault")), population)
        faults.check_faults(planted, trainer, number, values, TRAINERS)
    except SpecError as error:
        raise UsageError(str(error), "fault") from None
    check_options(trainer, population, values)
    return values


def arguments(
    trainer: Trainer, argv: Sequence[str] | None = None, ranks: int | None = None
) -> argparse.Namespace:
    """The options a trainer was started with; ends the process with 2 on wrong usage.

    `ranks`: how many there are; None: as the launcher says."""
    parser = make_parser(trainer)
    arguments_read = parser.parse_args(argv)
    try:
        if arguments_read.batch == AUTO:
            raise UsageError(
                "--batch auto is found before ranks start: put `python -m mgpu_trainers.largest "
                f"{trainer.name} --ranks N --` in front of the whole command"
            )
        check(trainer, _read_world(trainer) if ranks is None else ranks, vars(arguments_read))
        if why := _find_lack(trainer, vars(arguments_read)):
            raise UsageError(f"{trainer.name} {why}")
    except UsageError as error:
        parser.error(str(error))
    return arguments_read


def make_parser(trainer: Trainer) -> argparse.ArgumentParser:
    """A parser of the trainer's own options, each checked by itself."""
    parser = _Parser(prog=f"python -m {trainer.module}", description=trainer.summary)
    for option in trainer.options:
        default = f" (default {option.default})" if option.default is not None else ""
        parser.add_argument(
            f"--{option.name}",
            type=_reader(option) if option.words else option.type,
            default=[] if option.repeatable else option.default,
            action="append" if option.repeatable else "store",
            choices=option.choices or None,
            help=option.help + default,
        )
    return parser


def _reader(option: Option) -> Callable[[str], Value]:
    def read(text: str) -> Value:
        try:
            return option.read(text)
        except UsageError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def _read_ranks(trainer: Trainer, ranks: int | None) -> int:
    number = RANKS.read(str(trainer.default_ranks if ranks is None else ranks))
    if trainer.is_one_process and number != 1:
        instead = "; take --replicas" if trainer.has(Has.REPLICAS) else ""
        raise UsageError(
            f"{trainer.name} is one process: --ranks can only be 1{instead}", RANKS.name
        )
    return int(number)


def _read_world(trainer: Trainer) -> int | None:
    """How many ranks were started, as the launcher says; None: it does not."""
    if trainer.launcher is Launcher.CLUSTER:
        return cluster.count_workers()
    world = None if trainer.is_one_process else os.environ.get("WORLD_SIZE")
    return int(world) if world else None


def _spell_options(options: Mapping[str, object]) -> Iterable[str]:
    for name, value in options.items():
        for text in _list_texts(value):
            yield from (f"--{name.replace('_', '-')}", text)


def _list_texts(value: object) -> list[str]:
    if value is None:
        return []
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [str(text) for text in value]
    return [str(value)]


def _last(value: object) -> str | None:
    """The value that counts of an option that was given once or several times."""
    texts = _list_texts(value)
    return texts[-1] if texts else None


def fault_keys() -> dict[str, tuple[str, ...]]:
    """The kinds of faults that can be planted, each with the names of its keys."""
    return {kind: tuple(fault_defaults(kind)) for kind in faults.KINDS}


def fault_summary(kind: str) -> str:
    """What a rank with this kind of fault does."""
    return faults.KINDS[kind].summary


def fault_defaults(kind: str) -> dict[str, str]:
    """The default of each key of a kind, as a text spells it; empty: none."""
    return {key.name: key.default for key in list_keys(faults.KINDS[kind])}
