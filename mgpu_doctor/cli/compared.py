"""What `compare` and a sweep share: recordings by name, and how a comparison is printed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mgpu_doctor.cli.output import colour, put, unicode, width

if TYPE_CHECKING:
    from mgpu_doctor.analysis.comparing.comparison import Comparison, LeftOut
    from mgpu_doctor.case.model import Case

MOST = 64
"""Recordings that are compared at once."""


def below(folder: Path) -> list[Path]:
    """The recordings in a folder of them, by name."""
    from mgpu_doctor.recording.home import is_recording

    try:
        return sorted(one for one in folder.iterdir() if is_recording(one))
    except OSError:
        return []


def compare(folders: Sequence[Path]) -> Comparison | tuple[LeftOut, ...]:
    """The comparison of these recordings, or why there is none."""
    from mgpu_probes.outside.foreign import within_budget

    from mgpu_doctor.analysis.comparing.comparison import compare
    from mgpu_doctor.cli.progress import telling

    def case(name: str, folder: Path) -> Case | str:
        tell(f"reading {name}")
        return _case(folder)

    with telling() as tell, within_budget():
        return compare(
            (name, case(name, one)) for name, one in zip(names(folders), folders, strict=True)
        )


def _case(folder: Path) -> Case | str:
    """Or why it cannot be read."""
    from mgpu_doctor.case.load import NotARecording, load_recording

    try:
        return load_recording(folder)
    except NotARecording as error:
        return str(error)
    except OSError as error:
        return f"it cannot be read ({error.strerror})"


def names(folders: Sequence[Path]) -> list[str]:
    """The folders' own names, or as much of their paths as tells them apart."""
    whole = [folder.resolve() for folder in folders]
    for parts in (1, 2):
        short = ["/".join(folder.parts[-parts:]) for folder in whole]
        if len(set(short)) == len(short):
            return short
    return [str(folder) for folder in whole]


def text(found: Comparison) -> str:
    """As standard output can show it."""
    from mgpu_doctor.report.compared import terminal

    out = sys.stdout
    return terminal.render(found, width=width(out), colour=colour(out), unicode=unicode(out))


def show(found: Comparison) -> None:
    put(text(found))
