"""The lines that a recording holds for each host: samples, exits and looks as typed facts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mgpu_doctor.case import files
from mgpu_doctor.case.model import Unexamined

EXAMINED = "nothing: the other lines were examined"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RecordedLines:
    """Of the recording at `root`. What cannot be read is added to `unexamined`."""

    root: Path
    unexamined: list[Unexamined]

    def of(
        self,
        hosts: Sequence[Path],
        name: str,
        parse: Callable[[Any], T | None],
        quick: Callable[[bytes], T | None] | None = None,
    ) -> list[T]:
        """The facts in the files of this name. `parse`: one line's object to a fact. `quick`:
        reads most lines at once; `parse` then takes what that returns, too."""
        facts: list[T] = []
        bad = 0
        left_out = None
        for host in hosts:
            lines = files.read_lines(host / name, quick, root=self.root)
            parsed = [parse(line) for line in lines.objects]
            facts += [fact for fact in parsed if fact is not None]
            bad += lines.bad + sum(fact is None for fact in parsed)
            left_out = left_out or lines.left_out
        if left_out is not None:
            self.unexamined.append(Unexamined(name, f"the rest was left out: {left_out}", EXAMINED))
        if bad:
            self.unexamined.append(Unexamined(name, f"{bad} of its lines cannot be read", EXAMINED))
        return facts
