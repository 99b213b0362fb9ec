"""What a run was asked to do: from its command line and what its ranks told at their birth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import PurePath

from mgpu_doctor.case.files import Json
from mgpu_doctor.case.job import LAUNCHERS
from mgpu_doctor.case.model import Case

MOST = 64
LONGEST = 200
TOLD = ("framework", "framework_version", "strategy", "backend", "precision", "device_name")
"""Of the birth certificate, as the settings are called."""
NUMBERS = ("threads",)
TRAINERS = "mgpu_trainers."
OUR_LAUNCHERS = (
    "mgpu_trainers.apart",
    "mgpu_trainers.pytorch.ray_cluster",
    "mgpu_trainers.tensorflow.launcher",
)
"""They are given the module that trains as a word of their own."""
ON = "on"
PROGRAM, ARGUMENTS = "program", "arguments"


def settings_of(case: Case) -> dict[str, str]:
    """Name -> value, texts of somebody else: program, births' facts, then the program's options."""
    found: dict[str, str] = {}
    program, words = program_of(case.job.command)
    if program:
        found[PROGRAM] = program
    for name, value in (("framework", case.job.framework), ("strategy", case.job.strategy)):
        if value:
            found[name] = value
    birth = next((rank.birth for rank in case.ranks if rank.birth), {})
    found.update(_told(birth))
    for name, value in islice(options_of(words), MOST):
        found.setdefault(name, value)
    return {name[:LONGEST]: value[:LONGEST] for name, value in found.items()}


def _told(birth: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    for name in TOLD:
        value = birth.get(name)
        if isinstance(value, str) and value:
            yield name.replace("_", " "), value
    for name in NUMBERS:
        value = birth.get(name)
        if isinstance(value, int):
            yield name, str(value)


def program_of(command: Sequence[str]) -> tuple[str | None, Sequence[str]]:
    """The script or module that trains, and the words after it; launchers are passed over."""
    before = ""
    ours = False
    for place, word in enumerate(command):
        module = before in ("-m", "--module")
        if module and word in OUR_LAUNCHERS:
            ours = True
        elif (module and word not in LAUNCHERS) or (ours and word.startswith(TRAINERS)):
            return word, command[place + 1 :]
        elif word.endswith(".py"):
            return PurePath(word).name, command[place + 1 :]
        before = word
    return None, ()


def options_of(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """`--key value`, `--key=value` and `--flag` as pairs; what is no option comes last."""
    rest = list(words)
    loose = []
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or word == "--":
            loose.append(word)
            continue
        name, given, value = word[2:].partition("=")
        if not given:
            value = rest.pop(0) if rest and not rest[0].startswith("--") else ON
        yield name, value
    if loose:
        yield ARGUMENTS, " ".join(loose)


def differing(settings: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    """Names whose values are not the same in all runs, in the order in which they were found."""
    names = dict.fromkeys(name for each in settings for name in each)
    return tuple(name for name in names if len({each.get(name) for each in settings}) > 1)
