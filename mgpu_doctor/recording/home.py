"""Where recordings are stored, how they are named and how to find one."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from mgpu_doctor.formatting import suggest
from mgpu_doctor.recording.layout import INFO
from mgpu_doctor.recording.write import private_folder

LATEST = "latest"
_NAME_LENGTH = 24
_TRIES = 100


def home(environment: Mapping[str, str] = os.environ) -> Path:
    """Returns the doctor's state folder: `$MGPU_DOCTOR_HOME`, else `$XDG_STATE_HOME/mgpu-doctor`,
    else
    `~/.local/state/mgpu-doctor`. It need not exist."""
    if own := environment.get("MGPU_DOCTOR_HOME"):
        return Path(own).expanduser()
    if state := environment.get("XDG_STATE_HOME"):
        return Path(state).expanduser() / "mgpu-doctor"
    return Path("~/.local/state/mgpu-doctor").expanduser()


def runs(environment: Mapping[str, str] = os.environ) -> Path:
    """Returns the folder with one sub-folder per recording."""
    return home(environment) / "runs"


def new_id(name: str, now: float) -> str:
    """Returns an id that sorts by time and names the program, such as
    `20261121-120102-plain_ddp-3f2a90b1`.

    `now`: seconds since the epoch; the id shows local time."""
    slug = re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_")[:_NAME_LENGTH] or "job"
    return f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(now))}-{slug}-{os.urandom(4).hex()}"


def new_recording(name: str, now: float, environment: Mapping[str, str] = os.environ) -> Path:
    """Makes and returns a folder (0700) with a new id in the doctor's home. No other run uses it,
    not even on another host that shares the home. Raises OSError."""
    parent = private_folder(runs(environment))
    for _ in range(_TRIES):
        folder = parent / new_id(name, now)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            return folder
    raise FileExistsError(errno.EEXIST, "no new name for a recording", str(parent))


def job_name(command: Sequence[str]) -> str:
    """Returns the job's name: its script, else its module, else its program."""
    for argument in command:
        if argument.endswith(".py"):
            return Path(argument).stem
    for flag, module in itertools.pairwise(command):
        if flag in ("-m", "--module"):
            return module.rpartition(".")[2]
    return Path(command[0]).stem if command else "job"


def is_recording(folder: Path) -> bool:
    return (folder / INFO).is_file()


def latest(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Returns the recording that was started last; None if there is none."""
    newest: tuple[int, str] | None = None
    try:
        names = os.listdir(runs(environment))
    except OSError:
        return None
    for name in names:
        try:
            started = (runs(environment) / name / INFO).stat().st_mtime_ns
        except OSError:
            continue
        newest = max(newest or (0, ""), (started, name))
    return runs(environment) / newest[1] if newest else None


def find(reference: str, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Returns the recording that `reference` names: a folder, an id kept here or the beginning of
    a single one, or `latest`."""
    if reference == LATEST:
        return latest(environment)
    for folder in (Path(reference), runs(environment) / reference):
        if is_recording(folder):
            return folder
    begun = [] if len(reference) < SHORTEST else _list_beginning(reference, environment)
    return begun[0] if len(begun) == 1 else None


SHORTEST = 8
"""Characters of an id, from its beginning, that can name a recording: those of its day."""


def _list_beginning(start: str, environment: Mapping[str, str]) -> list[Path]:
    try:
        names = [name for name in os.listdir(runs(environment)) if name.startswith(start)]
    except OSError:
        return []
    return [folder for name in names if is_recording(folder := runs(environment) / name)]


def suggest_recording(reference: str, environment: Mapping[str, str] = os.environ) -> str:
    """`Did you mean X?` with the newest recordings whose id is near `reference` or contains it, or
    empty."""
    try:
        names = sorted(os.listdir(runs(environment)), reverse=True)[:MOST_SUGGESTED_FROM]
    except OSError:
        names = []
    holding = [name for name in names if len(reference) > 2 and reference in name][:2]
    if holding:
        return f"Did you mean {', '.join(holding)}?"
    return suggest(reference, [LATEST, *names])


MOST_SUGGESTED_FROM = 1000
ELSEWHERE = "elsewhere"
MOST_ELSEWHERE = 256


@contextlib.contextmanager
def remembered(
    recording: Path | None, identity: str, environment: Mapping[str, str] = os.environ
) -> Iterator[None]:
    """Registers the recording (None: nothing) while the context is open. If the home is not
    writable, the job cannot be found by other commands; nothing else is lost."""
    link = home(environment) / ELSEWHERE / identity
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
    """Returns id -> folder of the newest registered recordings. Their jobs may have ended."""
    folder = home(environment) / ELSEWHERE
    homes = {}
    try:
        names = sorted(os.listdir(folder), reverse=True)[:MOST_ELSEWHERE]
    except OSError:
        return {}
    for name in names:
        with contextlib.suppress(OSError):
            homes[name] = (folder / name).readlink()
    return homes


def _forget_lost(folder: Path) -> None:
    """Removes links left by a killed `run`: the oldest, and dangling ones."""
    names = sorted(os.listdir(folder), reverse=True)
    for place, name in enumerate(names):
        if place >= MOST_ELSEWHERE or not (folder / name).exists():
            (folder / name).unlink(missing_ok=True)
