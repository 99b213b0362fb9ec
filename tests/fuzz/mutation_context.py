"""One mutation in the making: what it changes, by which chance, and what lies around it."""

from __future__ import annotations

import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.fuzz.canary import Canary
from tests.fuzz.hostile_values import Hostile

MOST_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Scene:
    """`subject`: what the command line will name, a file or a folder, still honest. `twin`: the
    same outside of it, watched, for links to point to."""

    subject: Path
    twin: Path
    canary: Canary
    rng: Random

    @property
    def hostile(self) -> Hostile:
        return Hostile(self.rng, self.canary)

    def files(self, *endings: str) -> list[Path]:
        """Regular files of the subject whose names end so, all where none is given; without those
        that are too large to be read."""
        if is_regular(self.subject):
            return [self.subject]
        found = sorted(path for path in self.subject.rglob("*") if is_regular(path))
        return [path for path in found if not endings or path.name.endswith(endings)]

    def file(self, *endings: str) -> Path | None:
        found = self.files(*endings)
        return self.rng.choice(found) if found else None

    def beside(self, path: Path) -> Path:
        """Where the twin of a file of the subject lies."""
        return self.twin / path.relative_to(self.subject)


Mutator = Callable[[Scene], str]
"""Changes the subject and says what it did."""


def is_regular(path: Path) -> bool:
    """Whether it is a file of a size that can be changed."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size <= MOST_BYTES
