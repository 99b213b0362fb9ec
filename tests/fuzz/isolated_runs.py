"""Runs the command line in a process of its own, and says what it did and what it took."""

from __future__ import annotations

import gc
import os
import resource
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from tests.fuzz.forbidden_actions import Deeds

CPU_SECONDS = 10.0
HUNG_SECONDS = 90.0
"""Of the wall's clock: on a busy machine a process may get little of the processor."""
BACKSTOP = 3 << 30
"""Bytes above what the process has at its start from which on it gets no more memory."""
_OWN_FAULT = 86
"""Exit code of a child that failed by an exception, which is no code of the command line's."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended. Bytes; `cpu` and `wall` in seconds."""

    code: int | None
    """None: by a signal."""
    signal: int | None
    error: str | None
    """A traceback, if an exception left the command line."""
    deeds: tuple[str, ...]
    """What it must not do, and did."""
    peak: int
    cpu: float
    wall: float
    stdout: bytes
    stderr: bytes


def run(
    words: list[str], folder: Path, allowed: tuple[Path, ...], typed: Path | None = None
) -> Ended:
    """Runs `mgpu-doctor WORDS...`. `folder`: an empty one for its streams; `allowed`: where it may
    write."""
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        _be_the_command(words, folder, allowed, typed)
    status, usage = _waited(child, HUNG_SECONDS)
    error, deeds = folder / "error", folder / "deeds"
    return Ended(
        code=os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
        signal=os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
        error=error.read_text("utf-8", "replace") if error.exists() else None,
        deeds=tuple(deeds.read_text("utf-8", "replace").splitlines()) if deeds.exists() else (),
        peak=usage.ru_maxrss << 10,
        cpu=usage.ru_utime + usage.ru_stime,
        wall=time.monotonic() - began,
        stdout=_read(folder / "stdout"),
        stderr=_read(folder / "stderr"),
    )


def apart(act: Callable[[], object], seconds: float = HUNG_SECONDS) -> str | None:
    """Does it in a process of its own, so that this one's memory stays as it is; what went wrong,
    if anything."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            act()
        except BaseException:
            os.write(writer, traceback.format_exc().encode()[-4000:])
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as said:
        status, _ = _waited(child, seconds)
        words = said.read().decode("utf-8", "replace")
    return words or (f"ended by status {status}" if status else None)


def _waited(child: int, seconds: float) -> tuple[int, resource.struct_rusage]:
    """Its status and what it took; killed when the time is over."""
    descriptor = os.pidfd_open(child)
    try:
        if not select.select([descriptor], [], [], seconds)[0]:
            os.kill(child, signal.SIGKILL)
    finally:
        os.close(descriptor)
    _, status, usage = os.wait4(child, 0)
    return status, usage


def _be_the_command(
    words: list[str], folder: Path, allowed: tuple[Path, ...], typed: Path | None
) -> NoReturn:
    code = _OWN_FAULT
    try:
        _redirect(folder, typed)
        _limit()
        deeds = Deeds(allowed)
        sys.addaudithook(deeds.hear)
        code = _called(words, folder)
        deeds.stop()
        if deeds.seen:
            (folder / "deeds").write_text("\n".join(deeds.seen), "utf-8", "backslashreplace")
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        (folder / "error").write_text(traceback.format_exc(), "utf-8", "backslashreplace")
    finally:
        os._exit(code)


def _called(words: list[str], folder: Path) -> int:
    """The exit code. An exception, also one in a thread, is left in a file."""
    from mgpu_doctor.cli import main

    def note(kind: Any, error: Any, where: Any) -> None:
        lines = traceback.format_exception(kind, error, where)
        (folder / "error").write_text("".join(lines), "utf-8", "backslashreplace")

    threading.excepthook = lambda told: note(told.exc_type, told.exc_value, told.exc_traceback)
    sys.unraisablehook = lambda told: note(told.exc_type, told.exc_value, told.exc_traceback)
    sys.argv = ["mgpu-doctor", *words]
    try:
        main()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        raise
    return 0


def _redirect(folder: Path, typed: Path | None) -> None:
    given = os.open(typed or os.devnull, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(given, True)
    os.dup2(given, 0)
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    for number, name in ((1, "stdout"), (2, "stderr")):
        made = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(made, number)
        os.close(made)
    # As Python makes them in a locale of UTF-8.
    sys.stdout = open(1, "w", encoding="utf-8", errors="strict", closefd=False)  # noqa: SIM115
    told = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.stderr = told


def _limit() -> None:
    """A limit behind those that are checked: the machine must not suffer from what is found."""
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    most = pages * resource.getpagesize() + BACKSTOP
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CPU, (int(3 * CPU_SECONDS), int(3 * CPU_SECONDS) + 5))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    gc.enable()


def _read(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""
