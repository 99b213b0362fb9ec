"""Recordings that `--dir` put outside the doctor's home: remembered there while their jobs run, so
that these jobs are found like any other."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from mgpu_doctor.recording.home import home
from mgpu_doctor.recording.write import private_folder

FOLDER = "elsewhere"
MOST = 256


@contextlib.contextmanager
def remembered(
    recording: Path | None, identity: str, environment: Mapping[str, str] = os.environ
) -> Iterator[None]:
    """Remember the recording, None: nothing, for so long. Where the home cannot be written the job
    is not found, and nothing else is lost."""
    link = home(environment) / FOLDER / identity
    if recording is not None:
        with contextlib.suppress(OSError):
            private_folder(link.parent)
            _forget_lost(link.parent)
            link.symlink_to(recording)
    try:
        yield
    finally:
        if recording is not None:
            with contextlib.suppress(OSError):
                link.unlink()


def all_remembered(environment: Mapping[str, str] = os.environ) -> dict[str, Path]:
    """Id -> where the recording is, the newest ones. Whether its job still runs is not known."""
    folder = home(environment) / FOLDER
    found = {}
    try:
        names = sorted(os.listdir(folder), reverse=True)[:MOST]
    except OSError:
        return {}
    for name in names:
        with contextlib.suppress(OSError):
            found[name] = (folder / name).readlink()
    return found


def _forget_lost(folder: Path) -> None:
    """Links that a `run` left which was killed: the oldest, and those to what is there no more."""
    names = sorted(os.listdir(folder), reverse=True)
    for place, name in enumerate(names):
        if place >= MOST or not (folder / name).exists():
            (folder / name).unlink(missing_ok=True)
