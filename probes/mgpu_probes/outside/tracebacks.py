"""Python tracebacks in lines of text, one source of lines at a time. Facts only.

It parses tracebacks with chained exceptions (the last one is the raised one), syntax errors of
the script itself (they have no header), and faulthandler's `Fatal Python error` reports.
Formats: the standard library's `traceback` and `faulthandler`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

MOST_FRAMES = 200
MOST_LINES = 400
MOST_NOISE = 50
"""Foreign lines inside a traceback after which it is dropped."""
MOST_MESSAGE_LINES = 40
LINES_OF_FRAME = 4
"""Most lines of a frame: its place, its code, marks below it, and a line of where it was cut."""

_HEADER = re.compile(r"^\s*Traceback \(most recent call last\):\s*$")
_FRAME = re.compile(
    r'^\s*File "?(?P<file>[^"]+)", line (?P<line>\d{1,9})(?:,? in(?: (?P<in>.+))?|\s*)$'
)
"""Web pages drop `<module>`, which looks like a tag."""
_RAISED = re.compile(r"^(?P<type>[A-Za-z_][\w.]*(?:<locals>\.[\w.]+)?)(?::(?: (?P<message>.*))?)?$")
_CHAINED = re.compile(
    r"^\s*(?:The above exception was the direct cause of the following exception"
    r"|During handling of the above exception, another exception occurred):\s*$"
)
_WRAPPED = re.compile(r"Caught [\w.]{1,100} in [\w ]{1,60}\.$")
"""torch re-raises the exception of a loader worker or replica; its message is the traceback."""
IN_GRAPH = "Graph execution error:"
"""What TensorFlow's exceptions in graphs say. If a Python function that the graph called raised,
its traceback follows as a part of the message."""
_CALLS_PYTHON = "/tensorflow/python/ops/script_ops.py"
"""Where TensorFlow calls the functions of `tf.numpy_function` and `tf.py_function`: the outermost
call of such a traceback."""
ASIDE = re.compile(
    r"^(?:Exception ignored |--- Logging error ---|Exception in thread )"
    r"|Task exception was never retrieved"
)
"""Lines before tracebacks that ended no process: of finalizers, log handlers, threads, tasks."""
ASIDE_LINES = 3
"""Most lines over which a terminal may have broken such a line."""
_FATAL = re.compile(r"^Fatal Python error: (?P<message>.*)$")
_THREAD = re.compile(
    r"^(?P<current>Current t|T)hread 0x[0-9a-f]{1,16}\b.{0,200}?\(most recent call first\):\s*$"
)


@dataclass(frozen=True, slots=True)
class Frame:
    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True)
class Traceback:
    """One raised exception or fatal error; the innermost frame is the last one.

    `at` is the number of the line, from 0, on which the text says what was raised.
    """

    type: str
    message: str
    frames: tuple[Frame, ...]
    text: str
    at: int
    fatal: bool = False
    is_cut: bool = False
    """The text begins inside it, or ends inside another one that it led to: outer calls are
    missing, so it is unknown where it was caught."""

    @property
    def is_called_by_graph(self) -> bool:
        """Whether it is that of a Python function that a graph of TensorFlow called."""
        return any(frame.file.endswith(_CALLS_PYTHON) for frame in self.frames)


@dataclass(slots=True)
class _Open:
    """A traceback whose end has not been seen."""

    fatal: bool = False
    message: str = ""
    in_thread: bool = False
    is_cut: bool = False
    aside: bool = False
    noise: int = 0
    frames: list[Frame] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def keep(self, line: str) -> None:
        if len(self.lines) < MOST_LINES:
            self.lines.append(line)


def _is_exception_name(name: str) -> bool:
    """Whether the name is like `ValueError` or `queue.Empty`, not like `INFO` or `loss`."""
    last = name.rpartition(".")[2]
    if last.isupper():
        return False
    return last[:1].isupper() or "." in name or last.lower().endswith(("error", "exception"))


class TracebackReader:
    """Parses the lines of one source, fed in order; `found` holds the complete tracebacks.

    `labelled`: all lines are known to come from one process (a `[rank2]:` prefix), so lines after
    the exception's first one belong to its message; otherwise only indented ones do. `is_start`:
    the lines are the beginning of a text, which people often cut off inside a traceback.
    """

    def __init__(self, *, labelled: bool, is_start: bool = False) -> None:
        self._may_begin_inside = LINES_OF_FRAME if is_start else 0
        self.tracebacks: list[Traceback] = []
        self._labelled = labelled
        self._open: _Open | None = None
        self._message_lines = 0
        self._indented_alone = False
        self._chained = False
        self._aside = 0

    def feed(self, line: str, number: int) -> None:
        if _HEADER.match(line):
            self._close_fatal(number)
            self._message_lines = 0
            self._open = _Open(lines=[line], aside=self._aside > 0)
        elif fatal := _FATAL.match(line):
            self._close_fatal(number)
            self._message_lines = 0
            self._open = _Open(fatal=True, message=fatal["message"], lines=[line])
        elif _CHAINED.match(line):
            self._message_lines = 0
            self._chained = bool(self.tracebacks)
        elif self._open is None:
            self._outside(line)
        elif self._open.fatal:
            self._in_fatal(self._open, line, number)
        else:
            self._in_traceback(self._open, line, number)
        self._may_begin_inside = max(0, self._may_begin_inside - 1)
        self._aside = ASIDE_LINES if ASIDE.search(line) else max(0, self._aside - 1)

    def finish(self, number: int) -> None:
        """Ends the input. A traceback without its exception is dropped."""
        self._close_fatal(number)
        if self._chained and self.tracebacks:
            self.tracebacks[-1] = replace(self.tracebacks[-1], is_cut=True)
        self._open = None

    def _outside(self, line: str) -> None:
        frame = _FRAME.match(line)
        if frame and frame["in"] is None:  # a syntax error of the script itself has no header
            self._message_lines = 0
            self._open = _Open(lines=[line], frames=[_frame(frame)])
        elif frame and self._may_begin_inside:
            self._open = _Open(lines=[line], frames=[_frame(frame)], is_cut=True)
        elif self._indented_alone and (frame or not line[:1].isspace()):
            self._message_lines = 0  # a line of another process
        elif self._message_lines > 0 and self.tracebacks:
            self._message_lines -= 1
            last = self.tracebacks[-1]
            message, text = f"{last.message}\n{line}".strip(), f"{last.text}\n{line}"
            self.tracebacks[-1] = replace(last, message=message, text=text)

    def _in_traceback(self, tb: _Open, line: str, number: int) -> None:
        if frame := _FRAME.match(line):
            tb.keep(line)
            if len(tb.frames) < MOST_FRAMES:
                tb.frames.append(_frame(frame))
        elif not line or line[0].isspace():
            tb.keep(line)
        elif tb.frames and (raised := _RAISED.match(line)) and _is_exception_name(raised["type"]):
            tb.keep(line)
            if tb.aside:
                self._open = None
                return
            message = (raised["message"] or "").strip()
            frames, text = tuple(tb.frames), _text(tb)
            is_cut = tb.is_cut
            self._add(Traceback(raised["type"], message, frames, text, number, is_cut=is_cut))
            self._open = None
            self._message_lines = MOST_MESSAGE_LINES
            self._indented_alone = not (self._labelled or _WRAPPED.match(message))
        else:
            tb.noise += 1
            if tb.noise > MOST_NOISE:
                self._open = None

    def _in_fatal(self, tb: _Open, line: str, number: int) -> None:
        frame = _FRAME.match(line)
        if thread := _THREAD.match(line):
            tb.in_thread = thread["current"].startswith("Current") and not tb.frames
        elif frame and tb.in_thread and len(tb.frames) < MOST_FRAMES:
            tb.frames.append(_frame(frame))
        elif not frame and (not line.strip() and tb.frames):
            self._close_fatal(number)
            return
        elif not frame:
            tb.noise += 1
            if tb.noise > MOST_NOISE:
                self._close_fatal(number)
                return
        tb.keep(line)

    def _close_fatal(self, number: int) -> None:
        tb = self._open
        if tb is not None and tb.fatal:
            frames = tuple(reversed(tb.frames))
            self._add(
                Traceback("Fatal Python error", tb.message, frames, _text(tb), number, fatal=True)
            )
            self._open = None

    def _add(self, tb: Traceback) -> None:
        """Adds a traceback; its chained exceptions remain only in its text."""
        if self._chained and self.tracebacks:
            cause = self.tracebacks.pop()
            text = f"{cause.text}\n\n(which led to)\n\n{tb.text}"
            tb = Traceback(tb.type, tb.message, tb.frames, text, tb.at, tb.fatal)
        elif tb.frames[:1] and tb.frames[0].file.endswith(_CALLS_PYTHON):
            tb = self._within_graph(tb)
        self._chained = False
        self.tracebacks.append(tb)

    def _within_graph(self, tb: Traceback) -> Traceback:
        """The exception of a Python function, with the calls that led to the graph that called it;
        TensorFlow's own exception, whose message it is, remains only in its text."""
        if not self.tracebacks or not self.tracebacks[-1].message.startswith(IN_GRAPH):
            return tb
        graph = self.tracebacks.pop()
        frames = (*graph.frames, *tb.frames)[-MOST_FRAMES:]
        return replace(tb, frames=frames, text=f"{graph.text}\n\n{tb.text}", is_cut=graph.is_cut)


def _frame(match: re.Match[str]) -> Frame:
    return Frame(match["file"], int(match["line"]), (match["in"] or "").strip())


def _text(tb: _Open) -> str:
    return "\n".join(tb.lines)
