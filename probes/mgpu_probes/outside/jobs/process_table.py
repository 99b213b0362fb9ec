"""All processes of this machine at one moment, with more of each from /proc on demand.

Files: proc(5). Processes that have ended and unreadable files are unknown."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from mgpu_probes.outside.jobs.rank_environment import VARIABLES
from mgpu_probes.outside.processes import split_stat

MOST_PROCESSES = 65_536
MOST_COMMAND = 64 << 10
MOST_ENVIRONMENT = 1 << 20
MOST_MAPS = 4 << 20
MOST_THREADS = 256
MOST_FILES = 1024
_KERNEL_THREAD = 0x00200000
"""PF_KTHREAD among the flags of proc_pid_stat(5)."""
_TICKS = os.sysconf("SC_CLK_TCK")
_CHUNK = 64 << 10
_LONGEST_NAME = 64
_PAGE = 2048
"""Bytes. A shorter first read is the whole file: proc(5) fills pages of at least 4 KiB."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the process table."""

    pid: int
    parent: int
    state: str
    name: str
    start_ticks: int
    cpu_seconds: float

    @property
    def started(self) -> tuple[int, int]:
        """A key that sorts processes by start time, within one clock tick by pid."""
        return self.start_ticks, self.pid

    @property
    def zombie(self) -> bool:
        return self.state in "ZXx"


class Machine:
    """One pass over /proc at the start; every other file is read at most once. For one thread."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = str(proc)
        self.entries: dict[int, Entry] = {}
        self.children: dict[int, list[int]] = {}
        self._commands: dict[int, tuple[str, ...]] = {}
        self._environments: dict[int, dict[str, str] | None] = {}
        self._programs: dict[int, str] = {}
        self._threads: dict[int, list[str]] = {}
        self._mapped: dict[tuple[int, tuple[bytes, ...]], bool | None] = {}
        for pid in self._pids():
            entry = self._entry(pid)
            if entry is not None:
                self.entries[pid] = entry
                self.children.setdefault(entry.parent, []).append(pid)

    def _pids(self) -> list[int]:
        try:
            names = os.listdir(self._proc)
        except OSError:
            return []
        return sorted(int(name) for name in names if name.isdecimal())[:MOST_PROCESSES]

    def _entry(self, pid: int) -> Entry | None:
        text = (self._read(pid, "stat", 4096) or b"").decode("utf-8", "replace")
        name, fields = split_stat(text)
        if len(fields) < 20:
            return None
        try:
            if int(fields[6]) & _KERNEL_THREAD:
                return None
            cpu = (int(fields[11]) + int(fields[12])) / _TICKS
            return Entry(pid, int(fields[1]), fields[0], name, int(fields[19]), cpu)
        except ValueError:
            return None

    def command(self, pid: int) -> tuple[str, ...]:
        """Its command line as words; empty for a zombie."""
        if pid not in self._commands:
            text = self._read(pid, "cmdline", MOST_COMMAND) or b""
            words = text.rstrip(b"\0").split(b"\0") if text else []
            self._commands[pid] = tuple(word.decode("utf-8", "replace") for word in words)
        return self._commands[pid]

    def program(self, pid: int) -> str:
        """The path of its executable; empty if not readable."""
        if pid not in self._programs:
            try:
                self._programs[pid] = os.readlink(f"{self._proc}/{pid}/exe")
            except OSError:
                self._programs[pid] = ""
        return self._programs[pid]

    def environment(self, pid: int) -> dict[str, str] | None:
        """The `VARIABLES` that it was started with; None if not readable, empty for a zombie."""
        if pid not in self._environments:
            text = self._read(pid, "environ", MOST_ENVIRONMENT)
            self._environments[pid] = None if text is None else _parse_environment(text)
        return self._environments[pid]

    def has_mapped(self, pid: int, names: tuple[bytes, ...]) -> bool | None:
        """Whether it has mapped a file whose path contains one of `names` (proc_pid_maps(5)); None
        if not readable."""
        key = (pid, names)
        if key not in self._mapped:
            self._mapped[key] = self._search(f"{self._proc}/{pid}/maps", names)
        return self._mapped[key]

    def status(self, pid: int) -> dict[str, str]:
        """The fields of proc_pid_status(5); empty if not readable."""
        text = (self._read(pid, "status", 16 << 10) or b"").decode("utf-8", "replace")
        lines = (line.partition(":") for line in text.split("\n"))
        return {key: value.strip() for key, _, value in lines}

    def cgroup(self, pid: int) -> str:
        """The text of proc_pid_cgroup(5); empty if not readable."""
        return (self._read(pid, "cgroup", 16 << 10) or b"").decode("utf-8", "replace")

    def namespace(self, pid: int, kind: str) -> str | None:
        """The identity of its namespace of this kind (namespaces(7)); None if not readable."""
        try:
            return os.readlink(f"{self._proc}/{pid}/ns/{kind}")
        except OSError:
            return None

    def threads(self, pid: int) -> list[str]:
        """The names of its first `MOST_THREADS` threads."""
        if pid not in self._threads:
            try:
                ids = os.listdir(f"{self._proc}/{pid}/task")[:MOST_THREADS]
            except OSError:
                ids = []
            texts = (self._read(pid, f"task/{id_}/comm", 64) or b"" for id_ in ids)
            self._threads[pid] = [text.decode("utf-8", "replace").strip() for text in texts]
        return self._threads[pid]

    def listening(self, within: str) -> set[str]:
        """The unix sockets whose paths contain `within`, as `open_files` names them."""
        text = (self._read("net", "unix", MOST_MAPS) or b"").decode("utf-8", "replace")
        # Num RefCount Protocol Flags Type St Inode Path: proc_net(5)
        lines = (line.split(None, 7) for line in text.splitlines())
        return {f"socket:[{words[6]}]" for words in lines if len(words) == 8 and within in words[7]}

    def open_files(self, pid: int) -> list[str]:
        """The targets of its first `MOST_FILES` file descriptors."""
        folder = f"{self._proc}/{pid}/fd"
        files = []
        try:
            for name in os.listdir(folder)[:MOST_FILES]:
                files.append(os.readlink(f"{folder}/{name}"))
        except OSError:
            pass  # not readable, or a descriptor was closed: what was read counts
        return files

    def tcp_sockets(self, pid: int) -> set[str] | None:
        """The TCP sockets of its network namespace, as `open_files` names them (proc_pid_net(5));
        None if not readable."""
        sockets: set[str] = set()
        for name in ("net/tcp", "net/tcp6"):
            text = self._read(pid, name, MOST_MAPS)
            if text is None and name == "net/tcp":  # the other one is absent without IPv6
                return None
            lines = (text or b"").decode("utf-8", "replace").splitlines()
            sockets.update(
                f"socket:[{words[9]}]" for line in lines if len(words := line.split()) > 9
            )
        return sockets

    def age(self, entry: Entry) -> float | None:
        """Seconds since it started; None if unknown."""
        try:
            with open(f"{self._proc}/uptime", encoding="ascii") as file:
                uptime = float(file.read(64).split()[0])
        except (OSError, ValueError, IndexError):
            return None
        return max(0.0, uptime - entry.start_ticks / _TICKS)

    def process_of(self, thread: int) -> int:
        """The pid of a thread's process; other ids as they are. Some tools show thread ids as pids:
        /proc does not list these and still has their files."""
        pid = "" if thread in self.entries else self.status(thread).get("Tgid", "")
        return int(pid) if pid.isdigit() else thread

    def ancestors(self, pid: int) -> list[int]:
        """The pids of its ancestors, nearest first."""
        pids: list[int] = []
        entry = self.entries.get(pid)
        while entry is not None and entry.parent in self.entries and entry.parent not in pids:
            pids.append(entry.parent)
            entry = self.entries[entry.parent]
        return pids

    def descendants(self, pid: int) -> list[int]:
        """The pids of its descendants, nearest first."""
        pids = list(self.children.get(pid, ()))
        for child in pids:
            pids.extend(self.children.get(child, ()))
        return pids

    def _search(self, path: str, names: tuple[bytes, ...]) -> bool | None:
        try:
            with open(path, "rb", buffering=0) as file:
                seen, left = b"", MOST_MAPS
                while left > 0 and (part := file.read(_CHUNK)):
                    seen = seen[-_LONGEST_NAME:] + part
                    if any(name in seen for name in names):
                        return True
                    left -= len(part)
        except OSError:
            return None
        return False

    def _read(self, pid: int | str, name: str, most: int) -> bytes | None:
        try:
            descriptor = os.open(f"{self._proc}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            first = os.read(descriptor, _CHUNK)
            if len(first) < _PAGE:  # the kernel hands out longer texts a page or more at a time
                return first
            parts, left = [first], most - len(first)
            while left > 0 and (part := os.read(descriptor, min(left, _CHUNK))):
                parts.append(part)
                left -= len(part)
            return b"".join(parts)
        except OSError:
            return None  # the process has ended
        finally:
            os.close(descriptor)


def _parse_environment(environment: bytes) -> dict[str, str]:
    """The `VARIABLES` in an environment; of duplicates the first, as getenv(3) finds it."""
    variables: dict[str, str] = {}
    for item in environment.split(b"\0"):
        key, _, value = item.partition(b"=")
        if (name := key.decode("ascii", "replace")) in VARIABLES:
            variables.setdefault(name, value.decode("utf-8", "replace"))
    return variables
