"""Memory that is free for a new process here: of the host, and within its control groups.

Sources: proc_meminfo(5); the kernel's cgroup-v2.rst (memory.max, memory.current) and
cgroup-v1/memory.rst. Linux alone; imports no framework.
"""

from collections.abc import Iterator
from pathlib import Path

_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")
_V2 = ("memory.max", "memory.current")


def free(root: Path = Path("/")) -> tuple[int, str] | None:
    """Bytes, and of what; None: this system does not tell."""
    known = [*_of_host(root), *_of_groups(root)]
    return min(known) if known else None


def _of_host(root: Path) -> Iterator[tuple[int, str]]:
    for line in _lines(root / "proc/meminfo"):
        name, _, rest = line.partition(":")
        words = rest.split()
        if name == "MemAvailable" and words and words[0].isdigit():
            yield int(words[0]) * 1024, "the host's memory"


def _of_groups(root: Path) -> Iterator[tuple[int, str]]:
    """Each control group that this process is in, up to the outermost that can be seen."""
    mounted = root / "sys/fs/cgroup"
    for line in _lines(root / "proc/self/cgroup"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers not in ("", "memory"):
            continue
        top, names = (mounted / "memory", _V1) if controllers else (mounted, _V2)
        inner = Path(path.strip().lstrip("/"))
        for folder in (inner, *inner.parents):
            limit, used = (_number(top / folder / name) for name in names)
            if limit is not None and used is not None:
                yield max(0, limit - used), "its control group's memory"


def _number(path: Path) -> int | None:
    text = "".join(_lines(path)[:1]).strip()
    return int(text) if text.isdigit() else None  # `max`: there is no limit


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []
