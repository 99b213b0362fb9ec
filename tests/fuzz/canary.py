"""What lies outside of every subject: nothing may open it, and nothing of it may be shown."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from collections.abc import Iterable
from pathlib import Path

TOKEN = "canary-7f3a9c51e2d84b06"
"""In every file outside: that it is shown proves that one was read."""
PIPE, SOCKET = "pipe", "socket"

_IN_ACCESS, _IN_OPEN, _IN_MODIFY = 0x1, 0x20, 0x2
_IN_CREATE, _IN_DELETE, _IN_ATTRIB = 0x100, 0x200, 0x4
_WATCHED = _IN_ACCESS | _IN_OPEN | _IN_MODIFY | _IN_CREATE | _IN_DELETE | _IN_ATTRIB
_NAMES = {_IN_ACCESS: "read", _IN_OPEN: "opened", _IN_MODIFY: "written to"}
_EVENT = struct.Struct("iIII")


class Canary:
    """A folder with honest files, a pipe and a socket. The kernel says who opens one of them,
    whatever its name (inotify(7))."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        (folder / "secret.txt").write_text(f"{TOKEN}\n" * 3)
        os.mkfifo(folder / PIPE)
        self._socket = socket.socket(socket.AF_UNIX)
        here = os.getcwd()
        os.chdir(folder)  # the address of a unix socket is 107 bytes at most
        self._socket.bind(SOCKET)
        os.chdir(here)
        self.places = [folder, folder / "secret.txt", folder / PIPE, folder / SOCKET]
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._inotify = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._inotify < 0:
            raise OSError(ctypes.get_errno(), "no inotify: the fuzzer needs it")
        self._watched: dict[int, Path] = {}
        self.watch(self.places)

    def watch(self, paths: Iterable[Path]) -> None:
        """From now on these are told of, too."""
        for path in paths:
            number = self._libc.inotify_add_watch(self._inotify, os.fsencode(path), _WATCHED)
            if number < 0:
                raise OSError(ctypes.get_errno(), "cannot be watched", str(path))
            self._watched[number] = path

    def touched(self) -> list[str]:
        """What was done to them since this was last asked, each once."""
        found: dict[str, None] = {}
        while True:
            try:
                raw = os.read(self._inotify, 1 << 16)
            except BlockingIOError:
                return list(found)
            at = 0
            while at < len(raw):
                number, mask, _, length = _EVENT.unpack_from(raw, at)
                at += _EVENT.size + length
                path = self._watched.get(number, self.folder)
                deed = next((_NAMES[bit] for bit in _NAMES if mask & bit), "changed")
                found.setdefault(f"{deed}: {path.relative_to(self.folder)}")

    def close(self) -> None:
        os.close(self._inotify)
        self._socket.close()
