"""Where recordings live, how they are called and how one is found again."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from mgpu_doctor.recording.layout import INFO
from mgpu_doctor.recording.write import private_folder

LATEST = "latest"
_NAME_LENGTH = 24
_TRIES = 100


def home(environment: Mapping[str, str] = os.environ) -> Path:
    """The doctor's state folder: `$MGPU_DOCTOR_HOME`, else `$XDG_STATE_HOME/mgpu-doctor`, else
    `~/.local/state/mgpu-doctor`. It need not exist."""
    if own := environment.get("MGPU_DOCTOR_HOME"):
        return Path(own).expanduser()
    if state := environment.get("XDG_STATE_HOME"):
        return Path(state).expanduser() / "mgpu-doctor"
    return Path("~/.local/state/mgpu-doctor").expanduser()


def runs(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder that holds one sub-folder a recording."""
    return home(environment) / "runs"


def new_id(name: str, now: float) -> str:
    """An id that sorts by time and says what ran, such as `20261121-120102-plain_ddp-3f2a90b1`.

    `now`: seconds since the epoch; the id shows local time."""
    slug = re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_")[:_NAME_LENGTH] or "job"
    return f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(now))}-{slug}-{os.urandom(4).hex()}"


def new_recording(name: str, now: float, environment: Mapping[str, str] = os.environ) -> Path:
    """A folder of a new id in the doctor's home, made by this call (0700): no other run has it,
    also not one on another host that shares the home. Raises OSError."""
    parent = private_folder(runs(environment))
    for _ in range(_TRIES):
        folder = parent / new_id(name, now)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            return folder
    raise FileExistsError(errno.EEXIST, "no new name for a recording", str(parent))


def job_name(command: Sequence[str]) -> str:
    """What a person would call the job: its script, else its module, else its program."""
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
    """The recording that was started last, or None where there is none."""
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
    """The recording that `reference` names: a folder, an id kept here, or `latest`."""
    if reference == LATEST:
        return latest(environment)
    for folder in (Path(reference), runs(environment) / reference):
        if is_recording(folder):
            return folder
    return None


ELSEWHERE = "elsewhere"
MOST_ELSEWHERE = 256


@contextlib.contextmanager
def remembered(
    recording: Path | None, identity: str, environment: Mapping[str, str] = os.environ
) -> Iterator[None]:
    """Remember the recording, None: nothing, for so long. Where the home cannot be written the job
    is not found, and nothing else is lost."""
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
    """Id -> where the recording is, the newest ones. Whether its job still runs is not known."""
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
    """Links that a `run` left which was killed: the oldest, and those to what is there no more."""
    names = sorted(os.listdir(folder), reverse=True)
    for place, name in enumerate(names):
        if place >= MOST_ELSEWHERE or not (folder / name).exists():
            (folder / name).unlink(missing_ok=True)
