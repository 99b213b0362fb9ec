"""Output of the verbs: what a stream can display, safe writing, the progress line, and exits."""

from __future__ import annotations

import gc
import io
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TextIO, TypedDict

import click
from mgpu_probes.outside.terminal_text import harmless

from mgpu_doctor import errors
from mgpu_doctor.launch.messages import make_one_line, print_message

WRONG_USAGE, NOTHING_EXAMINED = errors.WRONG_USAGE, errors.NOTHING_EXAMINED

_STYLES = re.compile(r"(\x1b\[[0-9;]*m)")
"""Colours and other styles of text (ECMA-48, Select Graphic Rendition)."""


class SafeStream:
    """A text stream that writes only harmless text to `inner`, and colours only if it shows them.
    Characters that `inner` cannot encode become `?`."""

    def __init__(self, inner: TextIO) -> None:
        self.inner = inner

    def write(self, text: str) -> int:
        parts = _STYLES.split(text)
        parts[::2] = map(harmless, parts[::2])
        if not has_colour(self.inner):
            del parts[1::2]
        self.inner.write(_encodable("".join(parts), self.inner))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    @property
    def buffer(self) -> io.RawIOBase:
        """A stream of bytes, which Click sometimes writes; they are filtered, too."""
        return _Bytes(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class _Bytes(io.RawIOBase):
    def __init__(self, stream: SafeStream) -> None:
        self._stream = stream

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        encoded = bytes(data)
        self._stream.write(encoded.decode("utf-8", "replace"))
        return len(encoded)

    def flush(self) -> None:
        self._stream.flush()


def guard_streams() -> Callable[[], None]:
    """Filter standard output and standard error; returns a function that undoes it."""
    originals = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (_guarded(stream) for stream in originals)

    def undo() -> None:
        sys.stdout, sys.stderr = originals

    return undo


def _guarded(stream: Any) -> Any:
    """The stream, filtered once. A standard stream that is closed is None."""
    return stream if stream is None or isinstance(stream, SafeStream) else SafeStream(stream)


def write_control_text(text: str) -> None:
    """Write text that moves the cursor to standard error. It must contain no foreign text."""
    stream = sys.stderr
    if stream is not None:
        inner = stream.inner if isinstance(stream, SafeStream) else stream
        inner.write(_encodable(text, inner))
        inner.flush()


def _encodable(text: str, stream: TextIO) -> str:
    """With `?` for what the stream cannot encode, instead of an error."""
    if text.isascii() or not stream.encoding:
        return text
    return text.encode(stream.encoding, "replace").decode(stream.encoding)


def terminal_width(stream: TextIO) -> int:
    """Columns of the terminal behind `stream`, else `$COLUMNS`, else 80."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return shutil.get_terminal_size().columns


def has_colour(stream: TextIO) -> bool:
    """Whether `stream` is a terminal with colours and `$NO_COLOR` is not set (no-color.org)."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return not plain and stream.isatty()


def has_unicode(stream: TextIO) -> bool:
    """Whether `stream` can encode every character."""
    encoding = getattr(stream, "encoding", None) or "ascii"
    return encoding.lower().replace("-", "").startswith("utf")


class Display(TypedDict):
    """What a stream can display, as the keyword arguments of the views."""

    width: int
    colour: bool
    unicode: bool


def display_of(stream: TextIO) -> Display:
    """The width, colours and characters that `stream` can display."""
    return {
        "width": terminal_width(stream),
        "colour": has_colour(stream),
        "unicode": has_unicode(stream),
    }


def print_text(text: str) -> None:
    """Write to standard output. A reader that stops reading (`| head`) is not an error."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # The rest of the buffer must not be flushed into the closed pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_line(sentence: str) -> None:
    """Write one line to standard output, without colours or line breaks inside."""
    print_text(f"{make_one_line(sentence)}\n")


def exit_with(code: int, sentence: str, details: str = "") -> NoReturn:
    """Print on standard error what is wrong and what to do, then further lines, and exit."""
    print_message(sentence)
    if details:
        click.echo(harmless(details), err=True)
    raise click.exceptions.Exit(code)


def save_text(file: Path, text: str, label: str) -> None:
    """Write `text` to `file` and say that `what` is there; exits with code 2 if that fails."""
    from mgpu_doctor.recording.write import write_whole

    try:
        write_whole(file, text.encode())
    except OSError as error:
        exit_with(WRONG_USAGE, f"{file} cannot be written ({error.strerror}).")
    print_message(f"{label} is in {file}")


ERASE = "\r\x1b[K"


@contextmanager
def progress_line() -> Iterator[Callable[[str], None]]:
    """Yields a function that shows its argument on standard error instead of the text before;
    it shows nothing if that is not a terminal. The line is erased at the end."""
    was_printed = False

    def show(sentence: str) -> None:
        nonlocal was_printed
        if sys.stderr is not None and sys.stderr.isatty():
            from mgpu_doctor.report.text import cut

            # Text longer than a line could not be erased.
            line = cut(f"mgpu-doctor: {make_one_line(sentence)} …", terminal_width(sys.stderr) - 1)
            write_control_text(ERASE + line)
            was_printed = True

    try:
        yield show
    finally:
        if was_printed:
            write_control_text(ERASE)


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Disable the search for reference cycles. A case has none, and searching its millions of
    objects takes a tenth of the time of a large job's diagnosis (benchmarks/report_scale.py)."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def keep_until_exit(value: object) -> None:
    """Keep a value until this process, which is about to end, is gone: to free the objects of a
    large case one by one takes a quarter of a second, and so does a search for cycles in them."""
    cycle: list[object] = [value]
    cycle.append(cycle)
    gc.freeze()  # now not even the garbage collector frees it
