"""Starts a command that sees all files but writes none: what it writes goes to memory, and is gone
when its last process has ended.

`python -m mgpu_doctor.launch.private_view SCRATCH KEPT -- COMMAND…` makes its own mount, network
and IPC namespaces (with a user namespace unless it is root), lays an overlay over every writable
file system, and becomes the command. SCRATCH is an empty folder; what is written in KEPT, a folder,
is kept. The command has no network but loopback. It starts without shared memory, semaphores and
message queues, and what it makes of them is gone with its last process.

Limits: the memory holds what is written, half of the machine's at most. Without root, a folder that
was there before cannot be renamed (overlayfs answers EXDEV), and of other owners and groups only
the working folder and temporary folders themselves can be written to, not folders in these
(EOVERFLOW), because a user namespace holds one user and one group.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

CANNOT = 125
"""Exit code if the view cannot be made; the reason is on standard error."""
_NEWNS, _NEWIPC, _NEWUSER, _NEWNET = 0x00020000, 0x08000000, 0x10000000, 0x40000000
_SPACES = _NEWNS | _NEWIPC | _NEWNET
_READ_ONLY, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 32, 4096, 16384, 1 << 18
_INHERITED = {"nosuid": 2, "nodev": 4, "noexec": 8, "noatime": 1024, "nodiratime": 2048}
_INHERITED |= {"relatime": 1 << 21}
"""Flags of a mount that a remount must repeat: the kernel locks them in a user namespace."""
_KERNEL_FILES = frozenset(
    {"autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts"}
    | {"devtmpfs", "efivarfs", "fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore"}
    | {"rpc_pipefs", "securityfs", "selinuxfs", "sysfs", "tracefs"}
)
"""File systems without files of users."""
_SYSTEM = frozenset({"/bin", "/boot", "/lib", "/lib32", "/lib64", "/libx32", "/sbin", "/usr"})
"""Folders that become read-only: no training job writes there."""
_SHARED_MEMORY = "/dev/shm"
_DEPTH = 6
_SET_ADDRESS, _SET_FLAGS, _SET_MASK, _UP = 0x8916, 0x8914, 0x891C, 1


class ViewError(OSError):
    """The view cannot be made: its file name and text say where and why."""


@dataclass(frozen=True, slots=True)
class Mount:
    path: str
    kind: str
    options: frozenset[str]

    @property
    def is_writable(self) -> bool:
        return "rw" in self.options and self.kind not in _KERNEL_FILES

    @property
    def flags(self) -> int:
        """The flags that a remount must repeat."""
        return sum(flag for name, flag in _INHERITED.items() if name in self.options)


def view_command(scratch: Path, kept: Path) -> list[str]:
    """The words before a command that start it in a private view."""
    module = [sys.executable, "-I", "-m", "mgpu_doctor.launch.private_view"]
    return [*module, str(scratch), str(kept), "--"]


def why_impossible(scratch: Path, kept: Path) -> str | None:
    """Why no private view can be made here, in a clause; None: it can."""
    tried = subprocess.run(
        [*view_command(scratch, kept), "true"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if not tried.returncode:
        return None
    lines = tried.stderr.strip().splitlines()
    return lines[-1][:200] if lines else f"it ended with exit code {tried.returncode}"


def enter(scratch: str, kept: str) -> None:
    """Moves this process into a private view. Raises OSError."""
    addresses = _own_addresses()
    as_root = _unshare()
    folder = os.open(kept, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    _bring_up(addresses)
    _mount("none", "/", None, _REC | _PRIVATE)
    mounts = list(_read_mounts())
    _mount("tmpfs", scratch, "tmpfs", 0, "mode=0700")
    memory = os.open(scratch, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    covered, split = _plan(mounts)
    options = ",redirect_dir=on" if as_root else ",userxattr"
    for number, path in enumerate(covered):
        # By descriptor: the path of the scratch folder may be covered by now.
        _cover(path, f"/proc/self/fd/{memory}/{number}", options)
    if not as_root:
        for name, path in (("temporary", "/var/tmp"), ("working", os.getcwd())):
            with suppress(OSError):
                _cover(path, f"/proc/self/fd/{memory}/{name}", options)
    if os.path.isdir(_SHARED_MEMORY):
        _mount("tmpfs", _SHARED_MEMORY, "tmpfs", 2 | 4, "mode=1777")
    _mount(f"/proc/self/fd/{folder}", kept, None, _BIND)
    for mount in split:
        _mount("none", mount.path, None, _REMOUNT | _BIND | _READ_ONLY | mount.flags)
    os.close(folder)
    os.close(memory)


def _unshare() -> bool:
    """Makes the namespaces; whether it needed no user namespace. Raises OSError."""
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        with suppress(OSError):
            _call("unshare", _SPACES)
            return True
    try:
        _call("unshare", _NEWUSER | _SPACES)
    except OSError as error:
        reason = f"not allowed here: {error.strerror}"
        raise ViewError(error.errno, reason, "namespaces") from None
    for file, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        Path(f"/proc/self/{file}").write_text(text, encoding="ascii")
    return False


def _plan(mounts: Sequence[Mount]) -> tuple[list[str], list[Mount]]:
    """The folders to cover, and the mounts to make read-only because they are covered in parts."""
    points = [mount.path for mount in mounts]
    covered: list[str] = []
    split: list[Mount] = []
    for mount in {mount.path: mount for mount in mounts if mount.is_writable}.values():
        if mount.path == _SHARED_MEMORY:
            continue
        if not os.path.isdir(mount.path) or _below(mount.path, points):
            split.append(mount)
        if os.path.isdir(mount.path):
            covered += _folders(mount.path, points, _DEPTH)
    return covered, split


def _folders(path: str, points: Sequence[str], depth: int) -> Iterator[str]:
    """The largest folders of a mount without another mount in them."""
    if path in _SYSTEM:
        return
    if not _below(path, points):
        yield path
    elif depth:
        with suppress(PermissionError), os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False) and entry.path not in points:
                    yield from _folders(entry.path, points, depth - 1)


def _below(path: str, points: Sequence[str]) -> bool:
    """Whether there is a mount within this folder."""
    prefix = path.rstrip("/") + "/"
    return any(point.startswith(prefix) and point != path for point in points)


def _cover(path: str, place: str, options: str) -> None:
    for folder in (place, f"{place}/upper", f"{place}/work"):
        os.mkdir(folder)
    lower, upper, work = (_escape(each) for each in (path, f"{place}/upper", f"{place}/work"))
    status = os.stat(path)
    os.chmod(f"{place}/upper", status.st_mode & 0o7777)
    try:
        data = f"lowerdir={lower},upperdir={upper},workdir={work}{options}"
        _mount("overlay", path, "overlay", 0, data)
    except OSError as error:
        raise ViewError(error.errno, f"no overlay here: {error.strerror}", path) from None


def _escape(path: str) -> str:
    for character in "\\:,":
        path = path.replace(character, "\\" + character)
    return path


def _read_mounts() -> Iterator[Mount]:
    """The mounts of this process (proc_pid_mountinfo(5)), in the order in which they were made."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
        for line in table:
            words = line.split()
            kind = words[words.index("-") + 1]
            path = words[4]
            for code, character in (("\\040", " "), ("\\011", "\t"), ("\\134", "\\")):
                path = path.replace(code, character)
            yield Mount(path, kind, frozenset(words[5].split(",")))


def _own_addresses() -> list[str]:
    """IPv4 addresses of this host's name, which launchers connect to."""
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
    except OSError:
        return []
    addresses = {str(entry[4][0]) for entry in found}
    return sorted(address for address in addresses if not address.startswith("127."))


def _bring_up(addresses: Sequence[str]) -> None:
    """Starts loopback, with the host's own addresses on it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SET_FLAGS, struct.pack("16sh14x", b"lo", _UP))
        for number, address in enumerate(addresses):
            name = f"lo:{number}".encode()
            for request, value in ((_SET_ADDRESS, address), (_SET_MASK, "255.255.255.255")):
                packed = struct.pack("16sHH4s8x", name, socket.AF_INET, 0, socket.inet_aton(value))
                with suppress(OSError):
                    fcntl.ioctl(control, request, packed)


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    arguments = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    try:
        _call("mount", *arguments, flags, None if data is None else os.fsencode(data))
    except OSError as error:
        raise ViewError(error.errno, error.strerror, target) from None


def _call(name: str, *arguments: bytes | int | None) -> None:
    """Calls a function of the C library. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    # Flags of mount are long, those of unshare are not.
    typed = [
        ctypes.c_ulong(argument) if isinstance(argument, int) and name == "mount" else argument
        for argument in arguments
    ]
    if getattr(libc, name)(*typed):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)


def main(arguments: Sequence[str]) -> NoReturn:
    """Enters the view and becomes the command."""
    scratch, kept, _, *command = arguments
    folder = os.getcwd()
    try:
        enter(scratch, kept)
        os.chdir(folder)
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
        sys.exit(CANNOT)


if __name__ == "__main__":
    main(sys.argv[1:])
