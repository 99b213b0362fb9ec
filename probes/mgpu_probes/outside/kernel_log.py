"""The processes that the kernel's OOM killer has killed, from the kernel's log. Facts only.

Lines: mm/oom_kill.c of Linux 3.10 to 6.18.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from mgpu_probes.outside.kernel_lines import KMSG, Records

MOST_KILLS = 64
_LONGEST = 300

_CHOSEN = re.compile(
    r"^oom-kill:constraint=(?P<constraint>[A-Z_]{1,40}),.{0,2000}?"
    r",(?:oom_memcg=(?P<limited>[^,]*),)?task_memcg=(?P<group>[^,]*),"
    r"task=(?P<name>.{0,64}?),pid=(?P<pid>\d{1,9}),"
)
_KILLED = re.compile(
    r"^(?:.{0,60}: )?[Kk]illed process (?P<pid>\d{1,9}) \((?P<name>.{0,64}?)\),? "
    r"(?:UID \d{1,10},? )?total-vm:\d{1,20}kB(?P<sizes>.{0,400})"
)
_RESIDENT = re.compile(r"(?:anon|file|shmem)-rss:(\d{1,15})kB")


@dataclass(frozen=True, slots=True)
class Kill:
    """One process that the kernel killed for want of memory. `pid` as the kernel numbers it, which
    inside a container is another one. `limited`: the group whose limit was reached; None: no
    group's, or not told (before Linux 4.19)."""

    pid: int
    since_boot: float
    """Seconds, by the kernel's own clock, which a machine that slept leaves behind."""
    name: str
    resident: int | None
    """Bytes: of its own, of mapped files and shared."""
    group: str | None
    limited: str | None
    constraint: str | None
    """`CONSTRAINT_MEMCG`: a group's limit; `CONSTRAINT_NONE`: the whole machine was out of it."""


class KernelLog:
    """Reads what the kernel logs from now on. `trouble`: why it cannot; None where it can.
    Never blocks. For one thread. `history`: also what it still remembers."""

    def __init__(self, path: Path = KMSG, *, history: bool = False) -> None:
        self._records = Records(path, history=history)
        self._chosen: dict[int, re.Match[str]] = {}

    @property
    def trouble(self) -> str | None:
        return self._records.trouble

    def new_kills(self) -> list[Kill]:
        """Those logged since the last call, the newest MOST_KILLS of them."""
        found: list[Kill] = []
        for since_boot, text in self._records.new():
            if chosen := _CHOSEN.match(text):
                self._chosen = {int(chosen["pid"]): chosen}
            elif killed := _KILLED.match(text):
                found.append(self._kill(killed, since_boot))
        return found[-MOST_KILLS:]

    def close(self) -> None:
        self._records.close()

    def _kill(self, killed: re.Match[str], since_boot: float) -> Kill:
        pid = int(killed["pid"])
        chosen = self._chosen.pop(pid, None)
        sizes = _RESIDENT.findall(killed["sizes"])
        return Kill(
            pid=pid,
            since_boot=since_boot,
            name=killed["name"],
            resident=1024 * sum(map(int, sizes)) if sizes else None,
            group=chosen["group"][:_LONGEST] or None if chosen else None,
            limited=(chosen["limited"] or "")[:_LONGEST] or None if chosen else None,
            constraint=chosen["constraint"] if chosen else None,
        )


def sees_own_pids(root: Path = Path("/")) -> bool:
    """Whether the kernel's pids are also ours: False inside a container's pid namespace."""
    try:
        # PROC_PID_INIT_INO of the kernel's proc_ns.h: the first pid namespace is always this one.
        return os.readlink(root / "proc/self/ns/pid") == "pid:[4026531836]"
    except OSError:
        return False
