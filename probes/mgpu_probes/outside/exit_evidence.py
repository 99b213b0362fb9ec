"""What this machine records about failed processes: OOM kills, full disks, process limits.

One object per host: the state at the start of observation, the current state, and the worst in
between."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mgpu_probes.outside import cgroups, disk_space, process_limits
from mgpu_probes.outside.host_usage import read_stat
from mgpu_probes.outside.kernel_log import MOST_KILLS, KernelLog, sees_own_pids

Json = dict[str, Any]

SHM = "/dev/shm"
MOST_PROCESSES = 512
MOST_GROUPS = 64
MOST_PLACES = 48
WRITERS = 16
"""Processes whose open files are checked in one poll; each poll continues with the next ones."""
_MOST_BYTES = 16_384


class ExitEvidence:
    """Collects the state of this machine from its creation on. For one thread.

    `folders`: folders that the job is known to use, by role: {"cwd": "/home/me", "tmp": "/tmp"}.
    `history`: also include earlier kills that the kernel's log still holds, for a job that ended.
    """

    def __init__(
        self,
        folders: Mapping[str, str] | None = None,
        root: Path = Path("/"),
        log: str = "dev/kmsg",
        *,
        history: bool = False,
    ) -> None:
        self._root = root
        self._since = time.time()
        self._looked = 0.0 if history else self._since
        self._log = KernelLog(root / log, history=history)
        self._machine: Json = {"before": cgroups.count_machine_kills(root), "now": None, "at": None}
        self._groups: dict[str, Json] = {}
        self._folders: dict[str, tuple[int, Path]] = {}
        self._innermost: dict[str, str | None] = {}
        self._processes: dict[int, Json] = {}
        self._places: dict[int, Json] = {}
        self._ways: dict[int, str] = {}
        self._kills: deque[Json] = deque(maxlen=MOST_KILLS)
        self._next_writer = 0
        for path in disk_space.list_local_mounts(root):
            self._place("mount", path)
        for role, path in {"shm": SHM, **(folders or {})}.items():
            self._place(role, path)
        self._join("self")

    def poll(self, pids: Iterable[int] = (), *, closely: bool = True) -> None:
        """Reads the counters, the file systems and the kernel's log; with `closely`, also these
        processes. A file system that does not respond may block it for long."""
        if closely:
            alive = list(pids)
            for pid in alive[:MOST_PROCESSES]:
                self._process(pid)
            self._find_places(alive)
        now = time.time()
        booted = now - time.monotonic()
        for kill in self._log.new_kills():
            # The kernel's clock drifts by seconds per day; the times of our polls bound that.
            at = min(now, max(self._looked, booted + kill.since_boot))
            self._kills.append({**kill._asdict(), "at": at})
            if kill.limited is not None:
                self._take_in(cgroups.find_groups_at(kill.limited, self._root))
        self._looked = now
        self._count(now)
        for device, place in self._places.items():
            self._measure(device, place, now)

    def evidence(self) -> Json:
        """Everything so far, ready for JSON (docs/recording.md)."""
        return {
            "host": os.uname().nodename,
            "since": self._since,
            "at": time.time(),
            "kernel_log": {"trouble": self._log.trouble, "own_pids": sees_own_pids(self._root)},
            "kills": list(self._kills),
            "machine_kills": self._machine,
            "groups": self._groups,
            "processes": {str(pid): facts for pid, facts in self._processes.items()},
            "places": list(self._places.values()),
            "core_pattern": self._read("proc/sys/kernel/core_pattern") or None,
        }

    def close(self) -> None:
        self._log.close()

    def _count(self, now: float) -> None:
        killed = cgroups.count_machine_kills(self._root)
        if killed is not None and killed != (self._machine["now"] or self._machine["before"]):
            self._machine["at"] = now
        self._machine["now"] = killed
        for name, group in self._groups.items():
            counters = cgroups.read_memory_counters(*self._folders[name])
            if all(value is None for value in counters.values()):
                continue  # the group is gone: keep the last values
            if counters["killed"] != group["now"]["killed"]:
                group["at"] = now
            group["now"] = counters

    def _process(self, pid: int) -> None:
        fields = read_stat(self._root / "proc", pid)
        if not fields:
            return
        known = self._processes.pop(pid, None)
        if known is None or known["start_ticks"] != int(fields[19]):
            known = {"start_ticks": int(fields[19]), "parent": int(fields[1]), "most_files": None}
        opened = process_limits.count_open_files(pid, self._root)
        self._make_room()
        self._processes[pid] = {
            **known,
            "files": opened,
            "most_files": max(filter(None, (opened, known["most_files"])), default=None),
            "limits": process_limits.read_limits(pid, self._root) or known.get("limits", {}),
            "group": self._join(pid) or known.get("group"),
        }

    def _make_room(self) -> None:
        """Drops the process that was seen longest ago: it most likely ended normally."""
        while len(self._processes) >= MOST_PROCESSES:
            del self._processes[next(iter(self._processes))]

    def _join(self, pid: int | str) -> str | None:
        """The memory group of a process; new groups and their parents are read immediately."""
        text = self._read(f"proc/{pid}/cgroup")
        if text and text not in self._innermost and len(self._innermost) < MOST_GROUPS:
            memory_groups = cgroups.find_memory_groups(pid, self._root)
            self._innermost[text] = next(iter(memory_groups), None)
            self._take_in(memory_groups)
        return self._innermost.get(text)

    def _take_in(self, paths: Mapping[str, tuple[int, Path]]) -> None:
        for name, (version, folder) in paths.items():
            if name not in self._groups and len(self._groups) < MOST_GROUPS:
                counters = cgroups.read_memory_counters(version, folder)
                self._folders[name] = (version, folder)
                self._groups[name] = {"before": counters, "now": counters, "at": None}

    def _find_places(self, pids: list[int]) -> None:
        if not pids:
            return
        first = self._next_writer % len(pids)
        self._next_writer += WRITERS
        for pid in pids[first : first + WRITERS]:
            before = disk_space.find_root_prefix(pid, self._root)
            if before:
                self._place("shm", SHM, before)
            try:
                self._place("cwd", os.readlink(self._root / f"proc/{pid}/cwd"), before)
            except OSError:
                continue  # gone, or not accessible
            for path in disk_space.list_written_files(pid, self._root):
                self._place("written", os.path.dirname(path), before)

    def _place(self, role: str, path: str, before: str = "") -> None:
        """Adds the path's file system, which is named by the first path in it."""
        space = disk_space.measure_disk_space(before + path)
        if space is None:
            return
        device = space.pop("device")
        if device not in self._places and len(self._places) < MOST_PLACES:
            self._places[device] = {"path": path, "roles": [], "before": space, "now": space}
            self._places[device]["least"] = {**space, "at": time.time()}
            self._ways[device] = before + path
        place = self._places.get(device)
        if place is not None and role not in place["roles"]:
            place["roles"].append(role)

    def _measure(self, device: int, place: Json, now: float) -> None:
        space = disk_space.measure_disk_space(self._ways[device])
        if space is None or space.pop("device") != device:
            return  # it was unmounted, or the process that had it mounted is gone
        place["now"] = space
        least = place["least"]
        if space["free"] < least["free"] or _fewer(space["inodes_free"], least["inodes_free"]):
            place["least"] = {**space, "at": now}

    def _read(self, name: str) -> str:
        try:
            with (self._root / name).open("rb") as file:
                return file.read(_MOST_BYTES).decode("utf-8", "replace").strip()
        except OSError:
            return ""


def _fewer(first: int | None, other: int | None) -> bool:
    return first is not None and other is not None and first < other
