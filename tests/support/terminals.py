"""Runs programs in real terminals and reads their screens: in tmux, or in a small emulator here."""

from __future__ import annotations

import base64
import codecs
import contextlib
import os
import re
import select
import shlex
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from tests.support.jobs import gone, kill_family, until
from tests.support.launching import Terminal

_PIECES = re.compile(
    r"(?P<mode>\x1b\[\?(?P<number>\d+)(?P<set>[hl]))"
    r"|(?P<to>\x1b\[(?P<row>\d*)(?:;(?P<column>\d*))?H)"
    r"|(?P<erase>\x1b\[2?J)"
    r"|\x1b\[[0-?]*[ -/]*[@-~]"  # colours, and what else does not move the text
    r"|\x1b\]52;c;(?P<copied>[^\x07\x1b]*)\x07"
    r"|\x1b[\]P][^\x07\x1b]*(?:\x07|\x1b\\)"
    r"|\x1b[^\[\]P]"
    r"|(?P<text>[^\x1b])",
    re.DOTALL,
)
ALTERNATE, CURSOR = 1049, 25


class Screen:
    """A terminal's screen after what a program has written to it: without colours and scrolling,
    and all letters have width 1."""

    def __init__(self, rows: int, columns: int) -> None:
        self.modes = {CURSOR: True}
        self.copied = ""
        """What the program has put on the clipboard (OSC 52)."""
        self._decode = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self.resize(rows, columns)
        self._below = self.lines, 0, 0

    def resize(self, rows: int, columns: int) -> None:
        self.size = rows, columns
        self._clear()

    def _clear(self) -> None:
        rows, columns = self.size
        self.lines = [[" "] * columns for _ in range(rows)]
        self._row = self._column = 0

    def text(self) -> str:
        return "\n".join("".join(line).rstrip() for line in self.lines)

    def write(self, data: bytes) -> None:
        self._rest += self._decode.decode(data)
        while piece := _PIECES.match(self._rest):
            self._rest = self._rest[piece.end() :]
            self._take(piece)

    def _take(self, piece: re.Match[str]) -> None:
        if piece["mode"]:
            self._switch(int(piece["number"]), piece["set"] == "h")
        elif piece["to"]:
            self._row, self._column = int(piece["row"] or 1) - 1, int(piece["column"] or 1) - 1
        elif piece["erase"]:
            self._clear()
        elif piece["copied"]:
            self.copied = base64.b64decode(piece["copied"]).decode()
        elif piece["text"]:
            self._put(piece["text"])

    def _switch(self, mode: int, on: bool) -> None:
        if mode == ALTERNATE and on != self.modes.get(ALTERNATE, False):
            if on:
                self._below = self.lines, self._row, self._column
                self._clear()
            else:
                self.lines, self._row, self._column = self._below
        self.modes[mode] = on

    def _put(self, letter: str) -> None:
        rows, columns = self.size
        if letter == "\n":
            self._row += 1
        elif letter == "\r":
            self._column = 0
        elif letter >= " ":
            if self._row < rows and self._column < columns:
                self.lines[self._row][self._column] = letter
            self._column += 1


class Console(Protocol):
    """A terminal in which a command runs."""

    def text(self) -> str:
        """The screen now, line by line."""

    def type(self, keys: str) -> None: ...

    def resize(self, rows: int, columns: int) -> None: ...

    def restored(self) -> bool:
        """Whether the program left the terminal in the state that a shell needs."""

    def copied(self) -> str:
        """What a paste gives: in tmux its newest buffer, else the clipboard."""

    def vanish(self) -> Callable[[], bool]:
        """Closes the terminal, as a closed window does. Returns a function that tells whether the
        command has ended."""

    def close(self) -> None: ...


class Emulated:
    def __init__(self, command: Sequence[str], rows: int, columns: int) -> None:
        self._screen = Screen(rows, columns)
        self._terminal = Terminal(command, rows, columns)

    def text(self) -> str:
        while select.select([self._terminal.master], [], [], 0)[0]:
            self._screen.write(os.read(self._terminal.master, 65536))
        return self._screen.text()

    def type(self, keys: str) -> None:
        self._terminal.type(keys.encode())

    def resize(self, rows: int, columns: int) -> None:
        self.text()
        self._screen.resize(rows, columns)
        self._terminal.resize(rows, columns)

    def restored(self) -> bool:
        modes = self._screen.modes
        return modes[CURSOR] and not modes.get(ALTERNATE) and self._terminal.unchanged()

    def copied(self) -> str:
        self.text()
        return self._screen.copied

    def vanish(self) -> Callable[[], bool]:
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, self._terminal.master)
        os.close(nothing)
        return lambda: self._terminal.process.poll() is not None

    def close(self) -> None:
        self._terminal.close()


class Tmux:
    def __init__(self, command: Sequence[str], rows: int, columns: int) -> None:
        self._tmux = ["tmux", "-L", f"mgpu-doctor-test-{uuid.uuid4().hex}", "-f", os.devnull, "-u"]
        self._vanished = False
        size = ("-x", str(columns), "-y", str(rows))
        self._ask("new-session", "-d", *size, shlex.join(command))

    def _ask(self, *words: str) -> str:
        done = subprocess.run(
            [*self._tmux, *words], check=True, stdout=subprocess.PIPE, encoding="utf-8"
        )
        return done.stdout

    def text(self) -> str:
        return self._ask("capture-pane", "-p")

    def type(self, keys: str) -> None:
        self._ask("send-keys", "-l", keys)

    def resize(self, rows: int, columns: int) -> None:
        self._ask("resize-window", "-x", str(columns), "-y", str(rows))

    def restored(self) -> bool:
        return self._ask("display-message", "-p", "#{alternate_on} #{cursor_flag}") == "0 1\n"

    def copied(self) -> str:
        return self._ask("show-buffer")

    def vanish(self) -> Callable[[], bool]:
        pid = int(self._ask("display-message", "-p", "#{pane_pid}"))
        self._ask("kill-server")
        self._vanished = True
        return lambda: gone(pid)

    def close(self) -> None:
        if self._vanished:
            return
        kill_family(int(self._ask("display-message", "-p", "#{pane_pid}")))
        subprocess.run([*self._tmux, "kill-server"], check=False, capture_output=True)


KINDS: tuple[type[Emulated | Tmux], ...] = (Emulated, Tmux) if shutil.which("tmux") else (Emulated,)


@contextlib.contextmanager
def console(
    kind: type[Emulated | Tmux], command: Sequence[str], rows: int = 30, columns: int = 100
) -> Iterator[Console]:
    opened = kind(command, rows, columns)
    try:
        yield opened
    finally:
        opened.close()


def awaited(there: Console, words: str, *, gone: bool = False) -> str:
    """Waits until the screen shows these words (`gone`: no longer shows them), and returns it."""
    try:
        until(lambda: (words in there.text()) != gone, seconds=120)
    except TimeoutError:
        what = f"never {'disappeared' if gone else 'appeared'}: {words}"
        raise AssertionError(f"{what}\n{there.text()}") from None
    return there.text()
