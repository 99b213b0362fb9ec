"""Checks of disk space, shared memory, open files, and the terminal."""

from __future__ import annotations

import os
import resource

from mgpu_probes.outside import disk_space

from mgpu_doctor.check.check_result import Check, CheckedMachine, Level, Result
from mgpu_doctor.formatting import format_bytes
from mgpu_doctor.launch.box_storage import can_map_boxes, file_system_of, local_places
from mgpu_doctor.recording.home import home

GIB = 1 << 30
STATE_ROOM = GIB
"""Some hundred recordings take this much."""
SHARED_MEMORY = GIB
"""Docker gives 64 MiB, in which data-loader workers die of a bus error; PyTorch's docs ask for
more. How much depends on the batches: this is the least with which few jobs get into trouble."""
OPEN_FILES = 4096
"""Data-loader workers pass each tensor as an open file (torch.multiprocessing, "Sharing
strategies"): the usual 1,024 are soon used up."""


def recordings(machine: CheckedMachine) -> Result:
    """Where they are kept."""
    folder = home(machine.environment)
    there = next(place for place in (folder, *folder.parents) if os.path.exists(place))
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        return Result(
            Level.FAIL,
            f"nothing can be written in {there}",
            "set MGPU_DOCTOR_HOME to a folder of yours, or use `run --dir DIR`",
        )
    if not can_map_boxes(there):
        kind = file_system_of(there)
        if not any(can_map_boxes(place) for place in local_places(machine.environment)):
            return Result(
                Level.WARN,
                f"{folder}, on a file system of type {kind}: steps cannot be recorded there",
                "set TMPDIR to a folder on a local disk (ext4, xfs, tmpfs)",
            )
        return Result(
            Level.NOTE,
            f"{folder}, on a file system of type {kind}: live data is kept in $TMPDIR and copied",
        )
    room = disk_space.measure_disk_space(str(there))
    free = room["free"] if room else None
    if free is not None and free < STATE_ROOM:
        return Result(
            Level.WARN,
            f"{folder}: {format_bytes(free)} left",
            "make room, or set MGPU_DOCTOR_HOME to a folder with more",
        )
    return Result(Level.PASS, f"{folder}: {format_bytes(free)} left")


def shared_memory(machine: CheckedMachine) -> Result:
    room = disk_space.measure_disk_space(str(machine.root / "dev/shm"))
    more = (
        "in a container: `--shm-size=8g` or `--ipc=host` (Kubernetes: an emptyDir of medium Memory)"
    )
    if room is None:
        return Result(Level.WARN, "there is no /dev/shm: data-loader workers will fail", more)
    told = f"{format_bytes(room['free'])} of {format_bytes(room['size'])} left"
    if room["size"] < SHARED_MEMORY:
        return Result(Level.WARN, f"{told}: data-loader workers may die of a bus error", more)
    if room["free"] < SHARED_MEMORY:
        remedy = "remove what dead jobs left there (`ls -l /dev/shm`), or make it larger"
        return Result(Level.WARN, told, remedy)
    return Result(Level.PASS, told)


def open_files(machine: CheckedMachine) -> Result:
    del machine
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= OPEN_FILES:
        return Result(Level.PASS, f"{_limit(soft)} a process")
    most = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    remedy = (
        f"`ulimit -n {most}` before the job starts"
        if most >= OPEN_FILES
        else "raise `nofile` in /etc/security/limits.conf, or `docker run --ulimit nofile=65536`"
    )
    return Result(
        Level.WARN, f"{_limit(soft)} a process: many data-loader workers need more", remedy
    )


def _limit(number: int) -> str:
    return "without a limit" if number == resource.RLIM_INFINITY else f"{number:,}"


def terminal(machine: CheckedMachine) -> Result:
    kind = machine.environment.get("TERM", "")
    if not machine.encoding.lower().replace("-", "").startswith("utf"):
        return Result(
            Level.WARN, f"{machine.encoding} is no Unicode: graphs are drawn in ASCII",
            "`export LC_ALL=C.UTF-8`",
        )  # fmt: skip
    if not machine.terminal:
        return Result(Level.NOTE, "output goes to no terminal: it is plain text")
    if kind in ("", "dumb"):
        return Result(
            Level.WARN,
            f"TERM is {kind or 'not set'}: `top` cannot draw",
            "`export TERM=xterm-256color`",
        )
    if machine.environment.get("NO_COLOR"):
        return Result(Level.PASS, f"{kind}, Unicode, no colours (NO_COLOR is set)")
    true = machine.environment.get("COLORTERM") in ("truecolor", "24bit")
    many = "16 million" if true else "256" if "256" in kind else "16"
    return Result(Level.PASS, f"{kind}, Unicode, {many} colours")


CHECKS = (
    Check("recordings", "recordings", recordings),
    Check("shared-memory", "shared memory", shared_memory),
    Check("open-files", "open files", open_files),
    Check("terminal", "terminal", terminal),
)
