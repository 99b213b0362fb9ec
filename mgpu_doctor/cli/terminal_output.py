"""Output of a verb: what the stream can display, a progress line, and a reader that has left."""

from __future__ import annotations

import gc
import io
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TextIO

import click
from mgpu_probes.outside.terminal_text import harmless

from mgpu_doctor.launch.messages import make_one_line, print_message

NOTHING_EXAMINED = 3
_STYLES = re.compile(r"(\x1b\[[0-9;]*m)")
"""Colours and the like, which the doctor's own views have (ECMA-48, Select Graphic Rendition)."""


class Border:
    """A stream of text in front of `inner`. Only harmless text passes, and colours where they are
    wanted; what `inner` cannot encode becomes `?`."""

    def __init__(self, inner: TextIO) -> None:
        self.inner = inner

    def write(self, words: str) -> int:
        parts = _STYLES.split(words)
        parts[::2] = map(harmless, parts[::2])
        if not colour(self.inner):
            del parts[1::2]
        self.inner.write(_encodable("".join(parts), self.inner))
        return len(words)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    @property
    def buffer(self) -> io.RawIOBase:
        """For bytes, which Click writes now and then. No way around."""
        return _Bytes(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class _Bytes(io.RawIOBase):
    def __init__(self, border: Border) -> None:
        self._border = border

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        words = bytes(data)
        self._border.write(words.decode("utf-8", "replace"))
        return len(words)

    def flush(self) -> None:
        self._border.flush()


def guard_streams() -> Callable[[], None]:
    """Put a border before standard output and standard error; what is returned takes it away."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (_bordered(stream) for stream in before)

    def undo() -> None:
        sys.stdout, sys.stderr = before

    return undo


def _bordered(stream: Any) -> Any:
    """Once. A standard stream that is closed is None."""
    return stream if stream is None or isinstance(stream, Border) else Border(stream)


def draw(words: str) -> None:
    """Write what moves the cursor to standard error. No foreign text may be in it, but harmless."""
    stream = sys.stderr
    if stream is not None:
        inner = stream.inner if isinstance(stream, Border) else stream
        inner.write(_encodable(words, inner))
        inner.flush()


def _encodable(words: str, stream: TextIO) -> str:
    """With `?` for what the stream cannot encode, instead of an error."""
    if words.isascii() or not stream.encoding:
        return words
    return words.encode(stream.encoding, "replace").decode(stream.encoding)


def width(stream: TextIO) -> int:
    """Columns of the terminal behind `stream`, else `$COLUMNS`, else 80."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return shutil.get_terminal_size().columns


def colour(stream: TextIO) -> bool:
    """On a terminal that has colours, unless `$NO_COLOR` says no (no-color.org)."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return not plain and stream.isatty()


def unicode(stream: TextIO) -> bool:
    """Whether the stream takes every character."""
    return (stream.encoding or "ascii").lower().replace("-", "").startswith("utf")


def put(words: str) -> None:
    """Write to standard output. A reader that has gone away (`| head`) is no error."""
    try:
        sys.stdout.write(words)
        sys.stdout.flush()
    except BrokenPipeError:
        # What is still buffered must not be flushed into the closed pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def put_line(sentence: str) -> None:
    """One line on standard output, without colours, whatever is in it."""
    put(f"{make_one_line(sentence)}\n")


def leave(sentence: str, code: int, below: str = "") -> NoReturn:
    """Print on standard error what is wrong and what to do, and exit. `below`: further lines."""
    print_message(sentence)
    if below:
        click.echo(harmless(below), err=True)
    raise click.exceptions.Exit(code)


ERASE = "\r\x1b[K"


@contextmanager
def telling() -> Iterator[Callable[[str], None]]:
    """What it gives shows a sentence in the place of the one before. Silent into a file."""
    shown = False

    def tell(sentence: str) -> None:
        nonlocal shown
        if sys.stderr is not None and sys.stderr.isatty():
            from mgpu_doctor.report.text import cut

            # What is longer than a line could not be erased as one.
            line = cut(f"mgpu-doctor: {make_one_line(sentence)} …", width(sys.stderr) - 1)
            draw(ERASE + line)
            shown = True

    try:
        yield tell
    finally:
        if shown:
            draw(ERASE)


@contextmanager
def unswept() -> Iterator[None]:
    """Nobody looks for cycles among objects meanwhile: facts have none, and to look through the
    millions that a large job leaves takes a tenth of its diagnosis (benchmarks/report_scale.py)."""
    sweeping = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if sweeping:
            gc.enable()
