"""One recording of a job that is started once per node: each node writes a part of it.

The part of a node is `hosts/HOST`, with a `recording.json`, `end.json` and `console` of its own.
Nodes that share the doctor's home, or a folder that the user names, find one another there: the
first one to come makes the recording, and the others see for whom it did. On a disk of its own, a
node's recording has its own part alone."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mgpu_doctor.recording.home import home, new_recording
from mgpu_doctor.recording.kept_recordings import read_object
from mgpu_doctor.recording.layout import END, HOSTS, INFO
from mgpu_doctor.recording.write import OccupiedError, private_folder

JOINT = "joint"
"""The key of `recording.json` whose value all nodes of a job share."""
UNFINISHED = "unfinished"
"""The key of `end.json`: host -> LOST or RUNNING, of nodes that had not ended with the job."""
LOST, RUNNING = "lost", "running"
UNSEEN = "unseen"
"""The key of `end.json`: what is not here, such as `host node7` -> why."""
FRESH = 120.0
"""Seconds since the last change of a recording after which its job counts as gone, so that no node
joins it. A node that runs touches its part every 15 s or more often (`process_watch.SLOWEST`)."""
KEPT = 86_400.0
"""Seconds for which the link to a recording is kept."""
LAST_MOMENT = 4_102_444_800
"""The year 2100, in seconds since the epoch."""
MOST_IN_A_STEP = 1000
"""Recordings with one key: a script may call mgpu-doctor several times in one Slurm step."""


def name_host() -> str:
    """What recordings call this machine, as a name of a folder."""
    return os.uname().nodename.replace("/", "_") or "localhost"


def claim_recording(
    key: str, name: str, started: float, host: str, environment: Mapping[str, str] = os.environ
) -> Path:
    """The folder in the doctor's home in which all nodes of the job with this key write: made by
    the first that asks. Raises OSError."""
    links = private_folder(home(environment) / JOINT)
    _forget_old(links)
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    for count in range(MOST_IN_A_STEP):
        link = links / f"{digest}-{count:03}"
        if not link.is_symlink():
            made = new_recording(name, started, environment)
            try:
                link.symlink_to(os.path.relpath(made, links))
            except FileExistsError:
                made.rmdir()  # another node was faster
            else:
                return made
        folder = Path(os.path.realpath(link))
        if _can_join(folder, host):
            return folder
    raise FileExistsError(f"{links} is full")


def _forget_old(links: Path) -> None:
    """Removes old links, by which nobody can find a recording to join any more. Newer ones stay,
    so that all nodes count the same."""
    for name in os.listdir(links):
        with contextlib.suppress(OSError):
            old = time.time() - (links / name).lstat().st_mtime > KEPT
            if old and not _is_fresh(links / name):
                (links / name).unlink()


def _can_join(folder: Path, host: str) -> bool:
    """Whether the recording is of a job that still runs and has no part of this host."""
    if (folder / END).exists() or (folder / HOSTS / host).exists():
        return False
    return _is_fresh(folder)


def _is_fresh(folder: Path) -> bool:
    """Whether a node wrote into the recording lately. At the start of a large job the folder itself
    shows it, without a look at all parts."""
    for path in itertools.chain((folder,), folder.glob(f"{HOSTS}/*/{INFO}")):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime < FRESH:
                return True
    return False


def join_recording(
    folder: Path, info: Mapping[str, object], key: str, host: str
) -> tuple[Path, bool]:
    """Makes this host's part of the recording in `folder`, which this call makes if no node has
    yet. `info`: content of `recording.json`. Returns the part, and whether this call made the
    recording. Raises OSError, and OccupiedError if the folder has something else, or a part of this
    host already."""
    private_folder(folder)
    others = {name for name in os.listdir(folder) if not name.startswith(f".{INFO}.")}
    if not (folder / INFO).exists() and others:
        raise OccupiedError(f"{folder} is not empty.")
    if folder.stat().st_uid != os.geteuid():
        raise OccupiedError(f"{folder} belongs to another user.")
    made = _write_first(folder, info, host)
    if (read_object(folder, INFO) or {}).get(JOINT) != key:
        raise OccupiedError(f"{folder} already contains a recording.")
    part = private_folder(folder / HOSTS) / host
    try:
        part.mkdir(mode=0o700)
    except FileExistsError:
        raise OccupiedError(f"{folder} already contains a recording of this host.") from None
    return part, made


def _write_first(folder: Path, info: Mapping[str, object], host: str) -> bool:
    """Writes `recording.json` as a whole unless there is one; whether it did."""
    draft = folder / f".{INFO}.{host}.{os.getpid()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(draft, flags, 0o600), "wb") as file:
        file.write((json.dumps(info, indent=1) + "\n").encode())
    try:
        os.link(draft, folder / INFO)
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    return True


def find_parts(folder: Path) -> Iterator[tuple[str, dict[str, Any], dict[str, Any] | None]]:
    """The host of each part of a joint recording, its `recording.json`, and its `end.json` if it
    has ended. Nothing of a recording that has no parts."""
    try:
        names = sorted(os.listdir(folder / HOSTS))
    except OSError:
        return
    for name in names:
        part = folder / HOSTS / name
        info = read_object(folder, f"{HOSTS}/{name}/{INFO}")
        if info is not None and part.is_dir():
            yield name, info, read_object(folder, f"{HOSTS}/{name}/{END}")


def are_of_one_job(one: Path, other: Path) -> bool:
    """Whether two recordings are of one job, by different nodes: they have the same key, the times
    of their parts overlap, and no host has a part in both."""
    keys = [(read_object(folder, INFO) or {}).get(JOINT) for folder in (one, other)]
    hosts = [{name for name, _, _ in find_parts(folder)} for folder in (one, other)]
    if keys[0] is None or keys[0] != keys[1] or not all(hosts) or hosts[0] & hosts[1]:
        return False
    (begun, over), (other_begun, other_over) = _find_span(one), _find_span(other)
    return max(begun, other_begun) <= min(over, other_over)


def _find_span(folder: Path) -> tuple[float, float]:
    """When the first part began and the last one ended; infinite: it has not."""
    parts = list(find_parts(folder))
    begun = (_moment(info.get("started")) for _, info, _ in parts)
    return min(begun), max(_moment(end.get("ended")) if end else math.inf for *_, end in parts)


def combine_ends(ends: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The end of the job by those of its hosts: the first one that failed, else the last one."""
    ends = sorted(ends, key=lambda end: _moment(end.get("ended")))
    failed = [end for end in ends if end.get("exit_code") or end.get("signal")]
    return {**(failed[0] if failed else ends[-1]), "ended": ends[-1].get("ended")}


def _moment(value: object) -> float:
    """Seconds since the epoch; 0 for what is no time. A file may have a number of any size."""
    if isinstance(value, int | float) and value >= 0:
        return float(min(value, LAST_MOMENT))
    return 0.0
