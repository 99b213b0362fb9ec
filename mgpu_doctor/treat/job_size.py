"""The sizes that a command names: batch, micro-batches and ranks, and the learning rate."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

_WHOLE = re.compile(r"[1-9][0-9]{0,8}")
_RATE = re.compile(r"[0-9]{0,9}\.?[0-9]{1,9}(?:[eE][+-]?[0-9]{1,2})?")
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
ACCUMULATION_OPTIONS = frozenset(
    {
        "accumulate",
        "accumulate-grad-batches",
        "accumulation-steps",
        "grad-accum",
        "grad-accum-steps",
        "gradient-accumulation-steps",
    }
)
RATE_OPTIONS = frozenset({"base-lr", "learning-rate", "lr"})
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
    text: str

    @property
    def value(self) -> int:
        """The number, of all settings but a learning rate."""
        return int(self.text)

    def write(self, command: Sequence[str], value: str) -> list[str]:
        """The command with another value."""
        words = list(command)
        joined = "=" in words[self.place]
        words[self.place] = f"{self.option}={value}" if joined else value
        return words


@dataclass(frozen=True, slots=True)
class Size:
    """The batch per rank, or the value of the command's option, and the number of ranks."""

    batch: int
    ranks: int | None
    """None: as the command says."""
    micro_batches: int | None = None
    """Per update; None: as the command says."""

    @property
    def share(self) -> int:
        """Batch of a rank per update, or the part of it that the command names."""
        return self.batch * (self.micro_batches or 1)

    def double(self) -> Size:
        """Twice the batch: in half as many micro-batches if there is an even number of them, else
        with twice the samples per update."""
        micro_batches = self.micro_batches
        if micro_batches is not None and micro_batches % 2 == 0:
            micro_batches //= 2
        return Size(self.batch * 2, self.ranks, micro_batches)


def find_setting(command: Sequence[str], options: Collection[str]) -> Setting | None:
    """The last of these options in the command that has a whole number above 0, or any if they are
    those of a learning rate; None: there is none."""
    found, number = None, _RATE if options is RATE_OPTIONS else _WHOLE
    for place, word in enumerate(command):
        option, joined, text = word.partition("=")
        if not joined and place + 1 < len(command):
            text = command[place + 1]
        name = option.lstrip("-").replace("_", "-")
        if option.startswith("-") and name in options and number.fullmatch(text):
            found = Setting(option, place if joined else place + 1, text)
    return found
