"""What is typed into the launch form as a command, or as the sentence that says what is wrong.

Pure. The sentences are those of the trainers' own catalogue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mgpu_trainers import catalogue
from mgpu_trainers.catalogue import Trainer, UsageError

FAULT = "fault"
RANKS = "ranks"
DIRECTORY = "dir"
MOST_RANKS = 1024
"""More than that is a slip of the finger: each is a process."""


@dataclass(frozen=True, slots=True)
class Filled:
    """The form as it stands; what is empty is left to its default."""

    trainer: str
    ranks: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    faults: tuple[str, ...] = ()
    directory: str = ""


@dataclass(frozen=True, slots=True)
class Ready:
    """`words`: what `mgpu-doctor` is to be told."""

    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """`place`: the name of the option that is wrong."""

    place: str
    sentence: str


def check(filled: Filled) -> Ready | Refused:
    """The command that the form asks for, or what is wrong first."""
    try:
        trainer = catalogue.find(filled.trainer)
    except UsageError as error:
        return Refused("trainer", _sentence(error))
    ranks = _ranks(trainer, filled.ranks)
    if isinstance(ranks, Refused):
        return ranks
    given = {name: typed.strip() for name, typed in filled.options.items() if typed.strip()}
    words = ["train", trainer.name]
    if filled.ranks.strip():
        words += ["--ranks", str(ranks)]
    try:
        catalogue.command(trainer, ranks, {**given, FAULT: filled.faults})
    except UsageError as error:
        return Refused(error.option or "trainer", _sentence(error))
    for name, value in (*given.items(), *((FAULT, fault) for fault in filled.faults)):
        words += [f"--{name}", value]
    if filled.directory.strip():
        words += ["--dir", filled.directory.strip()]
    return Ready((*words, "--quiet"))


def fault_text(kind: str, values: Mapping[str, str]) -> str:
    """A fault as the command line spells it, of the keys that are given."""
    given = ",".join(f"{key}={typed.strip()}" for key, typed in values.items() if typed.strip())
    return f"{kind}:{given}" if given else kind


def _ranks(trainer: Trainer, typed: str) -> int | Refused:
    try:
        ranks = int(typed.strip() or str(trainer.ranks.default))
    except ValueError:
        return Refused(RANKS, f"--ranks takes a whole number, not {typed!r}.")
    if not 1 <= ranks <= MOST_RANKS:
        return Refused(RANKS, f"--ranks must be 1 to {MOST_RANKS}, not {ranks}.")
    return ranks


def _sentence(error: UsageError) -> str:
    return f"{str(error).rstrip('.')}."
