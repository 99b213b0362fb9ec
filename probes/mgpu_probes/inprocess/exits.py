"""How a process ends: exceptions with their traceback, and the last step told."""

from __future__ import annotations

import atexit
import os
import sys
import sysconfig
import traceback
from types import TracebackType
from typing import Any

from . import layout, wrap
from .probe_context import number, probe

_MOST_FRAMES = 40
"""Innermost frames of a traceback that go into the last words."""
_recorded: list[int] = []
_asked: list[tuple[int, dict[str, Any]]] = []
"""The last call of `sys.exit` that was to tell of a failure, and how many steps were recorded."""
_previous: list[Any] = []


def install() -> None:
    """Chains to `sys.excepthook` and registers for the interpreter's end. Only once."""
    if _previous:
        return
    _previous.append(sys.excepthook)
    sys.excepthook = _excepthook
    sys.exit = wrap.around(sys.exit, _exits, _nothing, probe.fail)
    atexit.register(_at_exit)


def watch_child() -> None:
    """A child of `multiprocessing` ends without `atexit` (fork) and catches its own exceptions."""
    util = sys.modules.get("multiprocessing.util")
    process = sys.modules.get("multiprocessing.process")
    if util is not None and process is not None and process.parent_process() is not None:
        util.Finalize(None, _at_child_exit, exitpriority=1000)


def _excepthook(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    try:
        record(error, trace)
    except Exception as trouble:
        probe.fail(trouble)
    _previous[0](kind, error, trace)


def _exits(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
    """Python prints what `sys.exit` was given, and tells no hook of it."""
    if not args or args[0] is None or args[0] == 0:
        return
    caller = sys._getframe(2)
    words = {
        "type": "SystemExit",
        "module": "builtins",
        "message": str(args[0])[:4000],
        "file": caller.f_code.co_filename,
        "line": caller.f_lineno,
        "function": caller.f_code.co_name,
    }
    _asked[:] = [(_steps(), words)]


def _steps() -> int:
    return 0 if probe.box is None else probe.box.written


def _nothing(_token: object, _result: object) -> None:
    pass


def _tell_exit() -> None:
    """Last words of a process that may end by `sys.exit`: its exit code tells whether it does.
    Where training went on after the call, somebody caught it."""
    if not probe.on or probe.box is None or _recorded or not _asked:
        return
    steps, words = _asked[0]
    if steps == _steps():
        probe.box.last_words(words)


def record(error: BaseException, trace: TracebackType | None) -> None:
    """Writes the exception as the box's last words. Opens a box for a rank that has none."""
    if not probe.on or _recorded or isinstance(error, KeyboardInterrupt):
        return
    if probe.box is None:
        if not _died_as_a_rank():
            return
        probe.identify(-1, -1)
        if not probe.open():
            return
    _recorded.append(1)
    frames = traceback.extract_tb(trace)
    own = [frame for frame in frames if not _foreign(frame.filename)] or frames
    where = own[-1] if own else None
    text = "".join(traceback.format_exception(type(error), error, trace, limit=-_MOST_FRAMES))
    words = {
        "type": type(error).__qualname__,
        "module": type(error).__module__,
        "message": str(error)[:4000],
        "file": where.filename if where else None,
        "line": where.lineno if where else None,
        "function": where.name if where else None,
        "traceback": text,
    }
    if probe.box is not None:
        probe.box.last_words(words)
        probe.box.state(layout.FAILED)
        summary = f"{words['type']}: {words['message']}"
        probe.event(layout.RAISED, probe.clock(), text=summary[: layout.EVENT_TEXT_SIZE])


def _died_as_a_rank() -> bool:
    """A process with RANK that its launcher set, not one that a rank started and that inherits."""
    if number("RANK") < 0:
        return False
    try:
        with open(f"/proc/{os.getppid()}/environ", "rb") as environ:
            inherited = f"\0RANK={os.environ['RANK']}\0".encode() in b"\0" + environ.read() + b"\0"
    except OSError:
        inherited = False
    return not inherited


def _foreign(file: str) -> bool:
    """Not the user's own: an installed package, the standard library or generated code."""
    return (
        file.startswith("<")
        or f"{os.sep}site-packages{os.sep}" in file
        or f"{os.sep}dist-packages{os.sep}" in file
        or file.startswith(_standard_library())
        or file.endswith("(importlib._bootstrap)")
    )


def _standard_library() -> str:
    return sysconfig.get_path("stdlib") + os.sep


def _at_exit() -> None:
    try:
        error = getattr(sys, "last_value", None)
        if isinstance(error, BaseException) and not isinstance(error, SystemExit):
            record(error, error.__traceback__)
        _tell_exit()
        probe.leave(1 if _recorded else None)
    except Exception as trouble:
        probe.fail(trouble)


def _at_child_exit() -> None:
    try:
        error = sys.exc_info()[1]
        code: int | None = None
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else None
            _tell_exit()
            # torch.multiprocessing writes the exception down for the parent, then exits with 1.
            error = error.__context__ if code else None
        if error is not None:
            record(error, error.__traceback__)
            code = 1 if code is None else code
        probe.leave(code)
    except Exception as trouble:
        probe.fail(trouble)


def forget() -> None:
    """In a forked child: the parent's exceptions are not the child's."""
    _recorded.clear()
    _asked.clear()
