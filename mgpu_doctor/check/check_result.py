"""A check of this machine, and its result: level, what was found, and what to do."""

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
    """Not here, or not to be improved: nothing is wrong."""
    WARN = "warn"
    """The doctor sees less than it could, or training will suffer."""
    FAIL = "fail"
    """A part of the doctor does not work."""


IMPROVABLE = frozenset({Level.WARN, Level.FAIL})


@dataclass(frozen=True, slots=True)
class Result:
    """`said`: what was found, `remedy`: what to do about it; empty where there is nothing to do."""

    level: Level
    said: str
    remedy: str = ""


def version_of(distribution: str) -> str | None:
    """The version of an installed package, of which nothing is imported; None: it is not there."""
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
    """Where the checks look; tests put something else in its place. `terminal`: whether standard
    output is one; `encoding`: of standard output."""

    root: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    euid: int = field(default_factory=os.geteuid)
    version: Callable[[str], str | None] = version_of
    terminal: bool = field(default_factory=_on_a_terminal)
    encoding: str = field(default_factory=_encoding)

    def text(self, path: str) -> str | None:
        """The beginning of a small file below the root; None: it cannot be read."""
        try:
            with (self.root / path).open("rb") as file:
                return file.read(1 << 20).decode("utf-8", "replace").strip()
        except OSError:
            return None

    def may(self, capability: int) -> bool:
        """Whether we have this capability (capabilities(7))."""
        for line in (self.text("proc/self/status") or "").splitlines():
            key, _, mask = line.partition(":")
            if key == "CapEff":
                return bool(int(mask.strip() or "0", 16) >> capability & 1)
        return False


@dataclass(frozen=True, slots=True)
class Check:
    """`id` is a promise to scripts; `title` is for people, 15 characters at most."""

    id: str
    title: str
    run: Callable[[CheckedMachine], Result]
