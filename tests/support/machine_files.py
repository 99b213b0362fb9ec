"""Files of pretend machines for the tests of failures: /proc and control groups."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

MIB = 1 << 20
STAT = "{pid} (python) S {parent} 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {ticks} 0 0 0 0 0 0 0 0\n"
LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max cpu time              {cpu}                      {cpu}                    seconds
Max open files            {files}                 4096                 files
Max address space         unlimited            unlimited            bytes
"""


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def process(
    root: Path, pid: int, *, group: str = "/jobs", parent: int = 1, files: int = 3, version: int = 2
) -> None:
    """Writes a process of a pretend /proc, with this many open files."""
    write(root, f"proc/{pid}/stat", STAT.format(pid=pid, parent=parent, ticks=1000 + pid))
    write(root, f"proc/{pid}/limits", LIMITS.format(cpu="unlimited", files=1024))
    write(root, f"proc/{pid}/cgroup", f"0::{group}\n" if version == 2 else f"4:memory:{group}\n")
    for number in range(files):
        write(root, f"proc/{pid}/fd/{number}", "")


def group(root: Path, path: str, counters: Mapping[str, str]) -> None:
    """Writes files of a pretend control group, below the mount point of its controller."""
    for name, text in counters.items():
        write(root, f"sys/fs/cgroup{path}/{name}", text)


def version_2(
    root: Path, path: str, *, killed: int = 0, limit: str = "max", used: int = MIB
) -> None:
    group(
        root,
        path,
        {
            "memory.events": f"low 0\nhigh 0\nmax 9\noom {killed}\noom_kill {killed}\n",
            "memory.events.local": f"low 0\nhigh 0\nmax 9\noom {killed}\noom_kill {killed}\n",
            "memory.max": f"{limit}\n",
            "memory.current": f"{used}\n",
            "memory.peak": f"{2 * used}\n",
        },
    )


def version_1(root: Path, path: str, *, killed: int = 0, limit: int = 1 << 62) -> None:
    group(
        root,
        f"/memory{path}",
        {
            "memory.oom_control": f"oom_kill_disable 0\nunder_oom 0\noom_kill {killed}\n",
            "memory.failcnt": f"{7 * killed}\n",
            "memory.limit_in_bytes": f"{limit}\n",
            "memory.usage_in_bytes": f"{MIB}\n",
            "memory.max_usage_in_bytes": f"{2 * MIB}\n",
        },
    )
