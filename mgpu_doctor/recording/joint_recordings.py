"""One recording of a job that is started once per node: each node writes a part of it.

The part of a node is `hosts/HOST`, with a `recording.json`, `end.json` and `console` of its own.
If several tasks of a Slurm step share the node, the first one writes that part, and each other one
has a part for these, `hosts/HOST/tasks/N`; boxes and exits of all lie together.
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
from typing import Any, NamedTuple

from mgpu_doctor.recording.home import home, new_recording
from mgpu_doctor.recording.layout import END, HOSTS, INFO, TASKS
from mgpu_doctor.recording.live_recordings import read_object
from mgpu_doctor.recording.write import OccupiedError, private_folder

JOINT = "joint"
"""The key of `recording.json` whose value all nodes of a job share."""
NODE = "node"
"""The key of `recording.json`: number of the node, from 0; null: unknown."""
NODES = "nodes"
"""The key of `recording.json`: how many nodes the job has, at least."""
UNFINISHED = "unfinished"
"""The key of `end.json`: host -> LOST or RUNNING, of nodes that had not ended with the job."""
LOST, RUNNING = "lost", "running"
UNSEEN = "unseen"
"""The key of `end.json`: what is not here, such as `host node7` -> why."""
UNSEEN_HOST = "host "
"""Begins the name of what is not here if it is a host."""
UNANSWERED = "unanswered"
"""The key of `end.json`: those of UNSEEN where nothing answers, as if the machine were off."""
NOT_HERE = "nothing that was recorded there is here"
"""Why a node is not seen whose name is not known."""
FRESH = 120.0
"""Seconds since the last change of a recording after which its job counts as gone, so that no node
joins it. A node that runs touches its part every 15 s or more often (`process_watch.SLOWEST`)."""
KEPT = 86_400.0
"""Seconds for which the link to a recording is kept."""
LAST_MOMENT = 4_102_444_800
"""The year 2100, in seconds since the epoch."""
MOST_IN_A_STEP = 1000
"""Recordings with one key: a script may call mgpu-doctor several times in one Slurm step."""


class Absence(NamedTuple):
    """Why something is not in a recording. `silent`: nothing answers there, as if the machine were
    off."""

    why: str
    silent: bool = False


def name_host() -> str:
    """What recordings call this machine, as a name of a folder."""
    return os.uname().nodename.replace("/", "_") or "localhost"


def name_part(host: str, task: int) -> str:
    """The part of a task, as a path below `hosts`. `task`: its number on the host, from 0."""
    return f"{host}/{TASKS}/{task}" if task else host


def host_of(part: str) -> str:
    """The host of a part."""
    return part.partition("/")[0]


def list_parts(folder: Path) -> list[str]:
    """The parts that have begun, as paths below `hosts`. None of a recording that has no parts."""
    hosts = folder / HOSTS
    names = (
        part
        for host in _list(hosts)
        for part in (host, *(name_part(host, int(task)) for task in _list_tasks(hosts / host)))
    )
    return [name for name in names if (hosts / name / INFO).exists()]


def _list_tasks(host: Path) -> list[str]:
    return [name for name in _list(host / TASKS) if name.isascii() and name.isdecimal()]


def _list(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def claim_recording(
    key: str, name: str, started: float, part: str, environment: Mapping[str, str] = os.environ
) -> Path:
    """The folder in the doctor's home in which all nodes of the job with this key write: made by
    the first that asks. `part`: of the one that asks now. Raises OSError."""
    first = find_links(key, environment)
    links = private_folder(first.parent)
    _forget_old(links)
    for count in range(MOST_IN_A_STEP):
        link = links / f"{first.name}-{count:03}"
        if not link.is_symlink():
            made = new_recording(name, started, environment)
            try:
                link.symlink_to(os.path.relpath(made, links))
            except FileExistsError:
                made.rmdir()  # another node was faster
            else:
                return made
        folder = Path(os.path.realpath(link))
        if _can_join(folder, part):
            return folder
    raise FileExistsError(f"{links} is full")


def find_links(key: str, environment: Mapping[str, str] = os.environ) -> Path:
    """The path with which the links to recordings with this key begin. The newest is the last."""
    return home(environment) / JOINT / hashlib.sha256(key.encode()).hexdigest()[:16]


def _forget_old(links: Path) -> None:
    """Removes old links, by which nobody can find a recording to join any more. Newer ones stay,
    so that all nodes count the same."""
    for name in os.listdir(links):
        with contextlib.suppress(OSError):
            old = time.time() - (links / name).lstat().st_mtime > KEPT
            if old and not _is_fresh(links / name):
                (links / name).unlink()


def _can_join(folder: Path, part: str) -> bool:
    """Whether the recording is of a job that still runs and does not have this part."""
    if (folder / END).exists() or (folder / HOSTS / part / INFO).exists():
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
    folder: Path, info: Mapping[str, object], key: str, part: str
) -> tuple[Path, bool]:
    """Makes a part of the recording in `folder`, which this call makes if no node has yet. `info`:
    content of `recording.json`. Returns the folder of the part, and whether this call made the
    recording. Raises OSError, and OccupiedError if the folder has something else, or that part
    already."""
    private_folder(folder)
    others = {name for name in os.listdir(folder) if not name.startswith(f".{INFO}.")}
    if not (folder / INFO).exists() and others:
        raise OccupiedError(f"{folder} is not empty.")
    if folder.stat().st_uid != os.geteuid():
        raise OccupiedError(f"{folder} belongs to another user.")
    made = _write_first(folder, info)
    if (read_object(folder, INFO) or {}).get(JOINT) != key:
        raise OccupiedError(f"{folder} already contains a recording.")
    own = private_folder(folder / HOSTS / part)
    if not _write_first(own, info):
        raise OccupiedError(f"{folder} already contains a recording of this host.")
    return own, made


def _write_first(folder: Path, info: Mapping[str, object]) -> bool:
    """Writes `recording.json` as a whole unless there is one; whether it did."""
    draft = folder / f".{INFO}.{name_host()}.{os.getpid()}"
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
    """Each part of a joint recording, its `recording.json`, and its `end.json` if it has ended."""
    for name in list_parts(folder):
        info = read_object(folder, f"{HOSTS}/{name}/{INFO}")
        if info is not None:
            yield name, info, read_object(folder, f"{HOSTS}/{name}/{END}")


def are_of_one_job(one: Path, other: Path) -> bool:
    """Whether two recordings are of one job, by different nodes: they have the same key, the times
    of their parts overlap, and if both have a part of a host, they are copies of one."""
    keys = [(read_object(folder, INFO) or {}).get(JOINT) for folder in (one, other)]
    if keys[0] is None or keys[0] != keys[1]:
        return False
    parts, others = ({name: info for name, info, _ in find_parts(at)} for at in (one, other))
    both = parts.keys() & others.keys()
    if not parts or not others or any(not _are_copies(parts[name], others[name]) for name in both):
        return False
    (begun, over), (other_begun, other_over) = _find_span(one), _find_span(other)
    return max(begun, other_begun) <= min(over, other_over)


def _are_copies(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two `recording.json` are of one part. Times of a copy may have been shifted."""
    keys = ("doctor_pid", "doctor_start_ticks", "boot_id")
    return "doctor_pid" in one and all(one.get(key) == other.get(key) for key in keys)


def _find_span(folder: Path) -> tuple[float, float]:
    """When the first part began and the last one ended; infinite: it has not."""
    parts = list(find_parts(folder))
    begun = (_moment(info.get("started")) for _, info, _ in parts)
    return min(begun), max(_moment(end.get("ended")) if end else math.inf for *_, end in parts)


def combine_ends(ends: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The end of the job by those of its parts: the first one that failed, else the last one."""
    ends = sorted(ends, key=lambda end: _moment(end.get("ended")))
    failed = [end for end in ends if end.get("exit_code") or end.get("signal")]
    return {**(failed[0] if failed else ends[-1]), "ended": ends[-1].get("ended")}


def _moment(value: object) -> float:
    """Seconds since the epoch; 0 for what is no time. A file may have a number of any size."""
    if isinstance(value, int | float) and value >= 0:
        return float(min(value, LAST_MOMENT))
    return 0.0
