"""The trainers by name: what each is, which options it takes, and the command that starts it.

Imports no framework, so that a list or a `--help` costs nothing.
"""

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NoReturn

from mgpu_trainers import faults, specs
from mgpu_trainers.specs import SpecError

Value = int | float | str


class UsageError(ValueError):
    """A name, an option or a value that no trainer takes; the message is one clear sentence."""


@dataclass(frozen=True)
class Option:
    name: str
    type: type[int] | type[float] | type[str]
    default: Value | None
    help: str
    choices: tuple[str, ...] = ()
    repeatable: bool = False


@dataclass(frozen=True)
class Trainer:
    name: str
    module: str
    framework: Literal["torch"]
    summary: str
    options: tuple[Option, ...]
    launcher: Literal["torchrun"] = "torchrun"


RANKS = Option("ranks", int, 2, "how many processes train together")
"""Taken by the launcher of every trainer, so not among a trainer's own options."""

TRAINING = (
    Option("steps", int, 200, "optimizer steps"),
    Option("model", str, "gpt-nano", "what is trained", ("gpt-nano", "cnn-nano")),
    Option("batch", int, None, "samples a rank takes at once (4 for gpt-nano, 32 for cnn-nano)"),
    Option("workers", int, 0, "data-loader processes of each rank"),
    Option("seed", int, 0, "of the weights and of the order of the data"),
    Option("lr", float, 1e-3, "learning rate"),
    Option("accumulate", int, 1, "batches whose gradients are added up for one optimizer step"),
    Option("threads", int, 1, "computing threads of each rank"),
    Option(
        "device", str, "auto", "auto takes a GPU for each rank, else CPUs", ("auto", "cpu", "cuda")
    ),
    Option("log-every", int, 10, "steps between two printed losses"),
    Option("fault", str, None, "KIND:KEY=VALUE,… planted on purpose", repeatable=True),
)
_LEAST = {"ranks": 1, "steps": 1, "batch": 1, "accumulate": 1, "threads": 1, "log-every": 1}

TRAINERS = (
    Trainer(
        "torch-ddp",
        "mgpu_trainers.torch_ddp",
        "torch",
        "PyTorch DistributedDataParallel: gloo on CPUs, NCCL on GPUs",
        TRAINING,
    ),
)


def find(name: str) -> Trainer:
    """The trainer of that name; raises UsageError for a name that is none."""
    for trainer in TRAINERS:
        if trainer.name == name:
            return trainer
    known = ", ".join(trainer.name for trainer in TRAINERS)
    raise UsageError(f"there is no trainer {name!r}: choose one of {known}")


def command(trainer: Trainer, ranks: int, options: Mapping[str, object]) -> list[str]:
    """The command line that starts `trainer` with this interpreter.

    `options` maps an option's name to its value, to None for its default, or to several values
    where it is repeatable. The rendezvous takes any free port, so that jobs can run side by side.
    Raises UsageError for an unknown option, a bad value, or a fault that cannot be planted.
    """
    _check(RANKS, str(ranks))
    known = {option.name: option for option in trainer.options}
    arguments: list[str] = []
    for name, value in options.items():
        option = known.get(name.replace("_", "-"))
        if option is None:
            raise UsageError(f"{trainer.name} has no option --{name}")
        for text in _texts(value):
            _check(option, text)
            arguments += [f"--{option.name}", text]
    _check_faults(_texts(options.get("fault")), ranks)
    return [
        *(sys.executable, "-m", "torch.distributed.run"),
        *("--standalone", "--nproc-per-node", str(ranks)),
        *("-m", trainer.module, *arguments),
    ]


def arguments(trainer: Trainer, argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What the trainer itself was called with; ends the process with 2 on wrong usage."""
    parser = _Parser(prog=f"python -m {trainer.module}", description=trainer.summary)
    for option in trainer.options:
        default = f" (default {option.default})" if option.default is not None else ""
        parser.add_argument(
            f"--{option.name}",
            type=option.type,
            default=[] if option.repeatable else option.default,
            action="append" if option.repeatable else "store",
            choices=option.choices or None,
            help=option.help + default,
        )
    given = parser.parse_args(argv)
    try:
        for option in trainer.options:
            for text in _texts(getattr(given, option.name.replace("-", "_"))):
                _check(option, text)
    except UsageError as error:
        parser.error(str(error))
    return given


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def _texts(value: object) -> list[str]:
    if value is None:
        return []
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [str(each) for each in value]
    return [str(value)]


def _check(option: Option, text: str) -> None:
    if option.choices and text not in option.choices:
        raise UsageError(f"--{option.name} must be one of {', '.join(option.choices)}, not {text}")
    try:
        value = option.type(text)
    except ValueError:
        kind = "a whole number" if option.type is int else "a number"
        raise UsageError(f"--{option.name} takes {kind}, not {text!r}") from None
    least = _LEAST.get(option.name, 0)
    if not isinstance(value, str) and not value >= least:
        raise UsageError(f"--{option.name} must be {least} or more, not {text}")


def fault_keys() -> dict[str, tuple[str, ...]]:
    """The kinds of faults that can be planted, each with the keys it takes."""
    return {kind: tuple(specs.keys(fault)) for kind, fault in faults.KINDS.items()}


def fault_defaults(kind: str) -> dict[str, str]:
    """What each key of a kind is when it is not given; empty: nothing."""
    return specs.defaults(faults.KINDS[kind])


def _check_faults(texts: Iterable[str], ranks: int) -> None:
    try:
        faults.parse(texts, ranks)
    except SpecError as error:
        raise UsageError(str(error)) from None
