"""A check of this machine, and its result: level, message and remedy."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from importlib import metadata
from pathlib import Path


class Level(str, Enum):
    PASS = "pass"
    NOTE = "note"
    """Not available here, or nothing to improve; nothing is wrong."""
    WARN = "warn"
    """The doctor sees less than it could, or training jobs may get into trouble."""
    FAIL = "fail"
    """A part of the doctor does not work."""


IMPROVABLE = frozenset({Level.WARN, Level.FAIL})


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a check. `remedy`: what to do; empty if there is nothing to do. `hosts`: those
    that it names, by the user's names; only `preflight` tests several."""

    level: Level
    message: str
    remedy: str = ""
    hosts: tuple[str, ...] = ()


def read_version(distribution: str) -> str | None:
    """The version of an installed package, without importing it; None if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _on_a_terminal() -> bool:
    return sys.stdout.isatty()


def _encoding() -> str:
    return sys.stdout.encoding or "ascii"


@dataclass(frozen=True, slots=True)
class CheckedMachine:
    """The machine that is checked; tests replace it. `terminal` says whether standard output is
    a terminal; `encoding` is that of standard output."""

    root: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    euid: int = field(default_factory=os.geteuid)
    version: Callable[[str], str | None] = read_version
    terminal: bool = field(default_factory=_on_a_terminal)
    encoding: str = field(default_factory=_encoding)

    def read_text(self, path: str) -> str | None:
        """The first MiB of a file below the root; None if it cannot be read."""
        try:
            with (self.root / path).open("rb") as file:
                return file.read(1 << 20).decode("utf-8", "replace").strip()
        except OSError:
            return None

    def has_capability(self, capability: int) -> bool:
        """Whether this process has this capability (capabilities(7))."""
        for line in (self.read_text("proc/self/status") or "").splitlines():
            key, _, mask = line.partition(":")
            if key == "CapEff":
                return bool(int(mask.strip() or "0", 16) >> capability & 1)
        return False


@dataclass(frozen=True, slots=True)
class Subject:
    """What is checked. Scripts rely on `id`; `title` is for people, 15 characters at most."""

    id: str
    title: str


@dataclass(frozen=True, slots=True)
class Check(Subject):
    """A check to run."""

    run: Callable[[CheckedMachine], Result]


@dataclass(frozen=True, slots=True)
class CheckedResult:
    """What was checked, and the result on this machine."""

    check: Subject
    result: Result

    @property
    def is_improvable(self) -> bool:
        return self.result.level in IMPROVABLE
