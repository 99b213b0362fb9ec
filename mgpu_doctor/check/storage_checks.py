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
"""About a hundred recordings take this much."""
SHARED_MEMORY = GIB
"""With Docker's default of 64 MiB, data-loader workers crash with a bus error; PyTorch's docs ask
for more. How much depends on the batches: with this much, few jobs run out."""
OPEN_FILES = 4096
"""Data-loader workers pass each tensor as an open file (torch.multiprocessing, "Sharing
strategies"): the usual 1,024 soon run out."""


def check_recordings(machine: CheckedMachine) -> Result:
    """Whether recordings can be written, and whether the disk has room for them."""
    folder = home(machine.environment)
    existing = next(place for place in (folder, *folder.parents) if os.path.exists(place))
    if not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)):
        return Result(
            Level.FAIL,
            f"{existing} is not writable",
            "set MGPU_DOCTOR_HOME to a folder of your own, or use `run --dir DIR`",
        )
    if not can_map_boxes(existing):
        kind = file_system_of(existing)
        if not any(can_map_boxes(place) for place in local_places(machine.environment)):
            return Result(
                Level.WARN,
                f"{folder}: steps cannot be recorded on this file system ({kind})",
                "set TMPDIR to a folder on a local disk (ext4, xfs, tmpfs)",
            )
        return Result(
            Level.NOTE,
            f"{folder}: this file system ({kind}) cannot be mapped: steps are written to "
            "$TMPDIR and copied at the end",
        )
    room = disk_space.measure_disk_space(str(existing))
    free = room["free"] if room else None
    if free is not None and free < STATE_ROOM:
        return Result(
            Level.WARN,
            f"{folder}: {format_bytes(free)} free",
            "free some space, or set MGPU_DOCTOR_HOME to a folder on a larger disk",
        )
    return Result(Level.PASS, f"{folder}: {format_bytes(free)} free")


def check_shared_memory(machine: CheckedMachine) -> Result:
    """Whether /dev/shm is large enough for the workers of data loaders."""
    room = disk_space.measure_disk_space(str(machine.root / "dev/shm"))
    larger = (
        "start the container with `--shm-size=8g` or `--ipc=host` (Kubernetes: mount an emptyDir "
        "with medium Memory)"
    )
    if room is None:
        return Result(Level.WARN, "/dev/shm is missing: data-loader workers will fail", larger)
    message = f"{format_bytes(room['free'])} of {format_bytes(room['size'])} free"
    if room["size"] < SHARED_MEMORY:
        return Result(
            Level.WARN, f"{message}: data-loader workers may crash with a bus error", larger
        )
    if room["free"] < SHARED_MEMORY:
        remedy = "remove files of ended jobs (`ls -l /dev/shm`), or make /dev/shm larger"
        return Result(Level.WARN, message, remedy)
    return Result(Level.PASS, message)


def check_open_files(machine: CheckedMachine) -> Result:
    """Whether a process may open enough files for the workers of data loaders."""
    del machine
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= OPEN_FILES:
        return Result(Level.PASS, f"{_format_limit(soft)} per process")
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    remedy = (
        f"`ulimit -n {wanted}` before the job starts"
        if wanted >= OPEN_FILES
        else "raise `nofile` in /etc/security/limits.conf, or `docker run --ulimit nofile=65536`"
    )
    return Result(
        Level.WARN,
        f"{_format_limit(soft)} per process: jobs with many data-loader workers need more",
        remedy,
    )


def _format_limit(number: int) -> str:
    return "no limit" if number == resource.RLIM_INFINITY else f"{number:,}"


def check_terminal(machine: CheckedMachine) -> Result:
    """What the terminal can display: Unicode, cursor movement and colours."""
    kind = machine.environment.get("TERM", "")
    if not machine.encoding.lower().replace("-", "").startswith("utf"):
        return Result(
            Level.WARN,
            f"the encoding {machine.encoding} is not Unicode: graphs are drawn in ASCII",
            "`export LC_ALL=C.UTF-8`",
        )
    if not machine.terminal:
        return Result(Level.NOTE, "standard output is not a terminal: output is plain text")
    if kind in ("", "dumb"):
        return Result(
            Level.WARN,
            f"TERM is {kind or 'not set'}: `mgpu-doctor top` cannot draw",
            "`export TERM=xterm-256color`",
        )
    if machine.environment.get("NO_COLOR"):
        return Result(Level.PASS, f"{kind}, Unicode, no colours (NO_COLOR is set)")
    true = machine.environment.get("COLORTERM") in ("truecolor", "24bit")
    colours = "16 million" if true else "256" if "256" in kind else "16"
    return Result(Level.PASS, f"{kind}, Unicode, {colours} colours")


CHECKS = (
    Check("recordings", "recordings", check_recordings),
    Check("shared-memory", "shared memory", check_shared_memory),
    Check("open-files", "open files", check_open_files),
    Check("terminal", "terminal", check_terminal),
)
