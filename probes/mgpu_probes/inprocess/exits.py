"""Records how a process ends: its exception with the traceback, its exit code, its last step."""

from __future__ import annotations

import atexit
import os
import sys
import sysconfig
import traceback
from types import TracebackType
from typing import Any

from . import layout, wrap
from .probe_context import ProbeContext, number

_MOST_FRAMES = 40
"""How many innermost frames of a traceback are recorded."""


class ExitRecorder:
    """Writes into the box how this process ends. It chains to the hooks that it replaces."""

    def __init__(self, context: ProbeContext) -> None:
        self._context = context
        self._recorded: list[int] = []
        self._asked: list[tuple[int, dict[str, Any]]] = []
        """The last call of `sys.exit` with a failure, after the number of steps recorded by
        then."""
        self._previous: list[Any] = []

    def install(self) -> None:
        """Replaces `sys.excepthook` and `sys.exit`, and registers for the interpreter's exit;
        once."""
        if self._previous:
            return
        self._previous.append(sys.excepthook)
        sys.excepthook = self._excepthook
        sys.exit = wrap.around(sys.exit, self._exits, _ignore, self._context.fail)
        atexit.register(self._at_exit)

    def watch_child(self) -> None:
        """Registers with `multiprocessing` in its child processes: these end without `atexit`
        (fork) and catch all exceptions."""
        util = sys.modules.get("multiprocessing.util")
        process = sys.modules.get("multiprocessing.process")
        if util is not None and process is not None and process.parent_process() is not None:
            util.Finalize(None, self._at_child_exit, exitpriority=1000)

    def _excepthook(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        try:
            self.record(error, trace)
        except Exception as trouble:
            self._context.fail(trouble)
        self._previous[0](kind, error, trace)

    def _exits(self, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        """Remembers the argument of `sys.exit`: Python prints it without calling any hook."""
        if not args or args[0] is None or args[0] == 0:
            return
        caller = sys._getframe(2)
        exit_facts: dict[str, Any] = {
            "type": "SystemExit",
            "module": "builtins",
            "message": str(args[0])[:4000],
            "file": caller.f_code.co_filename,
            "line": caller.f_lineno,
            "function": caller.f_code.co_name,
        }
        self._asked[:] = [(self._steps(), exit_facts)]

    def _steps(self) -> int:
        return 0 if self._context.box is None else self._context.box.written

    def _write_exit_facts(self) -> None:
        """Writes the last words of a process that may end by `sys.exit`, or after a failed wait.
        The exit code shows later whether it did. If steps followed, the exit was caught: nothing is
        written."""
        if not self._context.on or self._context.box is None or self._recorded:
            return
        exit_facts: dict[str, Any] = {}
        if self._asked and self._asked[0][0] == self._steps():
            exit_facts = self._asked[0][1]
        wait = self._context.find_failed_wait()
        if wait is not None:
            exit_facts |= {"type": wait.type, "message": wait.message, "wait": wait.as_words()}
        if exit_facts:
            self._context.box.last_words(exit_facts)

    def record(self, error: BaseException, trace: TracebackType | None) -> None:
        """Writes the exception as the box's last words; opens a box for a rank that has none
        yet."""
        if not self._context.on or self._recorded or isinstance(error, KeyboardInterrupt):
            return
        if self._context.box is None:
            if not _is_launched_rank():
                return
            self._context.identify(-1, -1)
            if not self._context.open():
                return
        self._recorded.append(1)
        frames = traceback.extract_tb(trace)
        user_frames = [frame for frame in frames if not is_library_code(frame.filename)] or frames
        where = user_frames[-1] if user_frames else None
        text = "".join(traceback.format_exception(type(error), error, trace, limit=-_MOST_FRAMES))
        facts: dict[str, Any] = {
            "type": type(error).__qualname__,
            "module": type(error).__module__,
            "message": str(error)[:4000],
            "file": where.filename if where else None,
            "line": where.lineno if where else None,
            "function": where.name if where else None,
            "traceback": text,
        }
        wait = self._context.find_failed_wait(error)
        if wait is not None:
            facts["wait"] = wait.as_words()
        if self._context.box is not None:
            self._context.box.last_words(facts)
            self._context.box.state(layout.FAILED)
            summary = f"{facts['type']}: {facts['message']}"
            self._context.event(
                layout.RAISED, self._context.clock(), text=summary[: layout.EVENT_TEXT_SIZE]
            )

    def _at_exit(self) -> None:
        try:
            error = getattr(sys, "last_value", None)
            if isinstance(error, BaseException) and not isinstance(error, SystemExit):
                self.record(error, error.__traceback__)
            self._write_exit_facts()
            self._context.leave(1 if self._recorded else None)
        except Exception as trouble:
            self._context.fail(trouble)

    def _at_child_exit(self) -> None:
        try:
            error = sys.exc_info()[1]
            code: int | None = None
            if isinstance(error, SystemExit):
                code = error.code if isinstance(error.code, int) else None
                self._write_exit_facts()
                # torch.multiprocessing passes the exception on to the parent, then exits with 1.
                error = error.__context__ if code else None
            if error is not None:
                self.record(error, error.__traceback__)
                code = 1 if code is None else code
            self._context.leave(code)
        except Exception as trouble:
            self._context.fail(trouble)

    def forget(self) -> None:
        """For a forked child, which must not report its parent's exceptions."""
        self._recorded.clear()
        self._asked.clear()


def _ignore(_token: object, _result: object) -> None:
    pass


def _is_launched_rank() -> bool:
    """Whether the launcher set RANK for this process, rather than that it inherited RANK from a
    rank that started it."""
    if number("RANK") < 0:
        return False
    try:
        with open(f"/proc/{os.getppid()}/environ", "rb") as environ:
            inherited = f"\0RANK={os.environ['RANK']}\0".encode() in b"\0" + environ.read() + b"\0"
    except OSError:
        inherited = False
    return not inherited


def is_library_code(file: str) -> bool:
    """Whether the file belongs to an installed package, the standard library or generated code."""
    return (
        file.startswith("<")
        or f"{os.sep}site-packages{os.sep}" in file
        or f"{os.sep}dist-packages{os.sep}" in file
        or file.startswith(_standard_library())
        or file.endswith("(importlib._bootstrap)")
    )


def _standard_library() -> str:
    return sysconfig.get_path("stdlib") + os.sep
