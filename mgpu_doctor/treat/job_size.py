"""The batch size and the number of ranks that a command names, and the command with others."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

_NUMBER = re.compile(r"[1-9][0-9]{0,8}")
BATCH_OPTIONS = frozenset(
    {
        "batch",
        "batch-size",
        "bs",
        "micro-batch-size",
        "per-device-batch-size",
        "per-device-train-batch-size",
        "per-gpu-batch-size",
        "train-batch-size",
    }
)
RANK_OPTIONS = frozenset(
    {"nproc-per-node", "nproc", "np", "num-processes", "num-gpus", "nprocs", "ranks", "world-size"}
)
"""Options of launchers and scripts, without dashes in front, with `-` for `_`."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A number in a command."""

    option: str
    """As it is written, such as `--batch-size`."""
    place: int
    """Index of its word."""
    value: int

    def write(self, command: Sequence[str], value: int) -> list[str]:
        """The command with another value."""
        words = list(command)
        joined = "=" in words[self.place]
        words[self.place] = f"{self.option}={value}" if joined else str(value)
        return words


@dataclass(frozen=True, slots=True)
class Size:
    """The batch per rank, or the value of the command's option, and the number of ranks."""

    batch: int
    ranks: int | None
    """None: as the command says."""


def find_setting(command: Sequence[str], options: Collection[str]) -> Setting | None:
    """The last of these options in the command that has a whole number above 0; None: there is
    none."""
    found = None
    for place, word in enumerate(command):
        option, joined, text = word.partition("=")
        if not joined and place + 1 < len(command):
            text = command[place + 1]
        name = option.lstrip("-").replace("_", "-")
        if option.startswith("-") and name in options and _NUMBER.fullmatch(text):
            found = Setting(option, place if joined else place + 1, int(text))
    return found
