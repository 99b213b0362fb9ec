"""The processes that the kernel's OOM killer has killed, from the kernel's log. Facts only.

Records of /dev/kmsg: the kernel's Documentation/ABI/testing/dev-kmsg. Lines: mm/oom_kill.c of
Linux 3.10 to 6.18.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

MOST_KILLS = 64
MOST_RECORDS = 20_000
"""Read at once; a busy log must not hold the reader up."""
_RECORD_BYTES = 8192
_LONGEST = 300

_CHOSEN = re.compile(
    r"^oom-kill:constraint=(?P<constraint>[A-Z_]{1,40}),.{0,2000}?"
    r"(?:oom_memcg=(?P<limited>[^,]*),)?task_memcg=(?P<group>[^,]*),"
    r"task=(?P<name>.{0,64}?),pid=(?P<pid>\d{1,9}),"
)
_KILLED = re.compile(
    r"^(?:.{0,60}: )?[Kk]illed process (?P<pid>\d{1,9}) \((?P<name>.{0,64}?)\),? "
    r"(?:UID \d+,? )?total-vm:\d+kB(?P<sizes>.{0,400})"
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

    def __init__(self, path: Path = Path("/dev/kmsg"), *, history: bool = False) -> None:
        self.trouble: str | None = None
        self._descriptor: int | None = None
        self._chosen: dict[int, re.Match[str]] = {}
        try:
            flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
            self._descriptor = os.open(path, flags)
            if not history:
                os.lseek(self._descriptor, 0, os.SEEK_END)
        except OSError as error:
            self.close()
            self.trouble = f"{path} cannot be read: {error.strerror or error}"

    def new_kills(self) -> list[Kill]:
        """Those logged since the last call, the newest MOST_KILLS of them."""
        found: list[Kill] = []
        for since_boot, text in self._new_lines():
            if chosen := _CHOSEN.match(text):
                self._chosen = {int(chosen["pid"]): chosen}
            elif killed := _KILLED.match(text):
                found.append(self._kill(killed, since_boot))
        return found[-MOST_KILLS:]

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

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

    def _new_lines(self) -> list[tuple[float, str]]:
        """Seconds since boot and the first line of each new record."""
        lines: list[tuple[float, str]] = []
        for _ in range(MOST_RECORDS):
            if self._descriptor is None:
                break
            try:
                record = os.read(self._descriptor, _RECORD_BYTES)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue  # records were overwritten before we came; the next read goes on after
            except OSError as error:
                self.close()
                self.trouble = f"the kernel's log cannot be read: {error.strerror or error}"
                break
            if not record:
                break
            head, _, text = record.decode("utf-8", "replace").partition(";")
            stamp = (*head.split(","), "", "", "")[2]  # priority, sequence, microseconds, flags
            seconds = int(stamp) / 1e6 if stamp.isdigit() and len(stamp) < 20 else 0.0
            lines.append((seconds, text.partition("\n")[0]))
        return lines


def sees_own_pids(root: Path = Path("/")) -> bool:
    """Whether the kernel's pids are also ours: False inside a container's pid namespace."""
    try:
        # PROC_PID_INIT_INO of the kernel's proc_ns.h: the first pid namespace is always this one.
        return os.readlink(root / "proc/self/ns/pid") == "pid:[4026531836]"
    except OSError:
        return False
