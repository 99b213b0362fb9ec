"""The last lines of a log that may report why a job failed: after the last sign of progress, and no
warnings. Facts about lines only; what an error is about is decided in `worded_errors`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from mgpu_probes.outside.logs.joined_lines import breaks_of
from mgpu_probes.outside.logs.log_lines import Line, split_line
from mgpu_probes.outside.logs.log_scanner import MILD
from mgpu_probes.outside.logs.log_shapes import reports_progress
from mgpu_probes.outside.logs.scanned_logs import Scanned
from mgpu_probes.outside.tracebacks import ASIDE, LINES_OF_FRAME

from mgpu_doctor.case.last_exceptions import HARMLESS, RAISED

LAST_LINES = 40
"""Lines at the end of a log that are read, calls of native stacks not counted. A choice: what
launchers print after an error is seldom longer."""
LATEST = 4
"""Lines at the very end: if several of them say that ranks wait, the job still waits."""
LEAST_PRINTED = 4
"""Lines of a process that show that what it prints is in the text. A choice."""
LAST_CALLS = 2
"""Calls at the end of a traceback that was cut; two, because ranks print at the same time."""
LEAST_FRAMES = 2
"""Frames that make a traceback without a header."""
WRAPPED_WIDTHS = range(60, 132)
"""Characters of a line from which a terminal or mail may have moved the rest to the next one."""
LONGEST_WORD = 24
"""Characters by which a line may be shorter because the next word did not fit. A choice."""
_MILD = re.compile(MILD.pattern.decode())
_LEVEL_WIDTH = 200
_FATAL = re.compile(
    r"(?:^|[\s\[])F(?:\d{4} [\d:.]{8,18} | (?:tensorflow|external|\./|\w+/)\S{1,200}\])"
)
"""A fatal line of glog or absl: the process aborts after it."""
_ERROR = re.compile(
    r"(?:^|[\s\[])E(?:\d{4} [\d:.]{8,18} | (?:tensorflow|external)\S{1,200}\])"
    r"|\b(?:errors?|fatal|fail(?:ed|ure|s)?|failing|cannot|can't|could ?n[o']t|unable|aborted"
    r"|aborting|killed|terminated|refused|denied|timed out|exhausted|crash(?:ed)?|insufficient"
    r"|exceed(?:ed|s)|not (?:enough|found|available|supported)|corrupt(?:ed)?|unreachable|lost"
    r"|preempted|evicted|cancell?ed|(?:access|page) fault|invoked"
    r"|invalid|out of memory|mismatch|no such|exception|imminent|reclaimed"
    r"|(?:received|got|detected) .{0,40}(?:interruption|termination) not(?:ice|ification))\b"
    r"|[a-z]Error\b|[a-z]Exception\b"
    r"|^ {0,8}(?:\(\d{1,3}\) {0,4})?(?:invalid_argument|resource_exhausted|failed_precondition"
    r"|unimplemented|deadline_exceeded|unavailable|data_loss): ",
    re.IGNORECASE,
)
"""Words without which a line reports no error. At the end: results of gRPC and TensorFlow."""
_ADDRESS = re.compile(r"https?://\S{1,400}")
"""Pages about errors are no errors."""
_MARKED = re.compile(
    r"\bNCCL WARN\b|\b(?:ERROR|FATAL|CRITICAL)\b|\[E |what\(\): |^(?:[Ee]rror|[Ff]atal): "
)
"""Levels of lines that report an error, whatever their words."""
_CALM = re.compile(
    r"\b(?:non-?fatal|not fatal|will be (?:ignored|used)|instead\b.{0,40}$|continu(?:e|es|ing)"
    r"|disable this|enabled|may (?:be )?(?:safely )?ignore|expected behaviou?r|no errors?|0 errors"
    r"|NCCL INFO|from scratch|unable to register cu\w+ factory|unable to initialize backend"
    r"|libibverbs|failed call to cuInit"
    r"|will (?:not|no longer) be (?:exported|collected|recorded|logged|reported|uploaded|tracked"
    r"|displayed|synced|available)|metrics? (?:exporter|agent)|telemetry|usage stats"
    r"|event (?:exporter|aggregator)|prometheus|opentelemetry|grafana)\b|^\+{1,4} "
    r"|:\s*(?:0|no(?:ne)?|n/a|false|disabled|enabled|(?:not )?supported)\s*$",
    re.IGNORECASE,
)
"""Words of lines that say that the job goes on, that a counter or state is harmless, or that are
about services that observe a job: it trains without them."""
_LOGGED = re.compile(r"(?:^|\s)(?P<level>[EI])(?:\d{4} [\d:.]{8,18}| (?:tensorflow|external)/)")
"""Lines of TensorFlow's and absl's loggers. Errors are fatal only if nothing is logged later."""
_REPORT = re.compile(
    r"\bChildFailedError\b|^Root Cause \(first observed failure\)|^\S{1,200} FAILED\s*$"
    r"|returned non-zero exit status|\b(?:CalledProcess|ProcessExited)(?:Error|Exception)\b"
    r"|^Exception: |\bMPI_ABORT\b"
    r"|\bexit(?:ed with|ed|s)?(?: code| status) ?[:=]? {0,8}[1-9]"
    r"|(?:^|[\s\]:|>)(?:[A-Za-z_]\w*\.){0,8}_?[A-Z]\w{1,60}(?:Error|Exception):(?: |$)"
    r"|^(?:[\w./-]{1,60}\.py|srun|sbatch|salloc|mpirun|trainer): error: |^Error: "
    r"|\bError executing job with overrides|^Error (?:from server|in )|^\W{0,3}ABORT\b"
    r"|\bworker\.status\.FAILED\b|\bWorker group failed\b|\bsigkill_handler\] \["
    r"|\bABORT!|\b(?:FATAL|CRITICAL)\b|\b[Cc](?:heck|HECK) failed: |: command not found\b"
    r"|failed to run command"
    r"|^\s*Reason: {1,12}Error\b|\bCannot continue\b"
    r"|\bERROR\b.{0,200}\b(?:died|dead|failed|aborted|stopped|crashed|ended)\b"
    r"|(?:^|\s)E(?:\d{4} [\d:.]{8,18}| \d{2,10} \d{2,10}\]) |\bterminated {2,}\S"
    r"|^(?:\w{1,60}\.){0,8}[A-Z]\w{0,60}(?:Error|Exception) {2,200}Traceback \(most recent"
    r"|\)(?:Assertion|Runtime|Value|Type|Key|Index)Error\b"
    r"|^\s*(?:[A-Z][a-z]{1,20}Error(?:: {0,3})?){2}"
)
"""What launchers and native code print when a process failed, and exceptions behind unknown
labels. At the end: a notebook's traceback, and exceptions that ranks printed at the same time."""
_NAN = re.compile(r"(?i:loss)\w{0,20}['\"]?\s{0,6}[:=|]?\s{0,6}(?:tensor\()?-?0{0,8}nan\b")
_BAR = re.compile(r"%\||it/s|s/it")
"""Progress bars show a loss before there is one."""
_FRAMED = re.compile(r"\s{0,8}[\u2502\u256d|]")
"""A line of a traceback in a frame, as Rich prints them; without the frame's lower edge."""
_STACK = re.compile(
    r"\s{0,8}(?:frame #\d|#\d{1,3} {1,4}\S|\[bt\] |@ {1,20}0x|\[0x[0-9a-f]{4,16}\])"
    r"|(?:\[ {0,8}\d{1,9}\.\d{6}\])? {1,3}(?:\? )?[\w.]{1,80}\+0x[0-9a-f]{1,6}/0x"
)
"""A call in a stack of native code or of the kernel."""
_SUCCESS = re.compile(
    r"\bsuccessfully (?:finished|completed|trained)"
    r"|^(?!.{0,120}\b[Aa]bort\b).{0,400}\b(?:finished|completed) successfully"
    r"|\b[Tt]raining (?:is |was )?(?:complete|completed|finished|done)\b"
)
"""What a job prints that came to its end."""
_WAITS = re.compile(
    r"\bWaiting in store based barrier\b|\bAdded key: store_based_barrier_key"
    r"|\bInitializing distributed: GLOBAL_RANK: \d"
    r"|\b[Ww]aiting for (?:\w{1,20} ){0,4}(?:clients|nodes|peers|ranks|workers) to (?:join|connect)"
)
_FRAME = re.compile(r'^(?:E {2,8})?\s*File "(?P<file>[^"]{1,400})", line \d{1,9}(?:, in |\s*$)')
"""A call in a traceback, also as pytest prints the output of a program that failed."""
_TRAIL = re.compile(r"\bNCCL INFO \S{1,200}\.(?:cc|cu|c|h|hpp):\d{1,6} -> [1-6]\b")
"""The trail that an error leaves in the callers, in NCCL's log."""
_LAUNCHER_ENDS = re.compile(r"\bsigkill_handler\] \[(?!.*\breturn code\b)")
"""DeepSpeed's launcher says which process failed, and the text ends before its exit code."""
_LAUNCHER = re.compile(r"\blaunch\.py:\d|^Killing subprocess")
FLATTENED = re.compile(
    r"^\s{0,20}(?:Traceback \(most recent call last\):?\s{0,20})?"
    r'File "[^"]{1,400}", line \d{1,9}, in .{1,1000}? '
    r"(?P<type>(?:\w{1,60}\.){0,8}[A-Z]\w{0,60}(?:Error|Exception)): (?P<message>.*)$"
)
"""A traceback whose line ends were lost."""
_RULE = re.compile(r"^[-=*]{20,}\s*$")
_BOX_LINES = 30
_SENTENCE = re.compile(r"\b[a-z]+ [a-z]+ [a-z]+\b")
_ABORTS = re.compile(
    r"\babort|unrecoverable|\bfail(?:ed|ure)?\b|\bunable\b|\berror\b|was not able|could not"
    r"|cannot|not found",
    re.IGNORECASE,
)
_GOES_ON = re.compile(
    r"\b(?:warning|instead|lower performance|will (?:continue|be used)|ignored?|disable this)\b",
    re.IGNORECASE,
)
"""Words of boxes that say that the job goes on."""


@dataclass(frozen=True, slots=True)
class LastLine:
    """A line at the end of a log."""

    number: int
    raw: str
    """With its prefixes."""
    line: Line

    @property
    def is_fatal(self) -> bool:
        """Whether the process aborts after it."""
        return bool(_FATAL.search(self.raw))

    @property
    def reports_error(self) -> bool:
        said = _ADDRESS.sub("", self.raw)
        return _is_raised(self.line) or any(
            words.search(said) for words in (_ERROR, _MARKED, _FATAL)
        )

    @property
    def reports_end(self) -> bool:
        """Whether it says that a process failed, but not in words that say why."""
        return bool(_REPORT.search(self.raw) or FLATTENED.match(self.line.text))

    @property
    def waits(self) -> bool:
        """Whether it says that a rank waits for others to join the process group."""
        return bool(_WAITS.search(self.line.text))

    @property
    def shows_nan(self) -> bool:
        """Whether it reports progress with a loss that is not a number."""
        return bool(_NAN.search(self.line.text)) and not _BAR.search(self.line.text)


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The end of a log."""

    reports: tuple[LastLine, ...] = ()
    """Lines that may report an error."""
    boxes: tuple[tuple[LastLine, ...], ...] = ()
    """Boxes of prose that report an error, as Open MPI prints them."""
    progress: LastLine | None = None
    """The last line that reports progress, if it is among the last ones."""
    has_progressed: bool = False
    waiting: tuple[LastLine, ...] = ()
    """Lines of ranks that wait for others to join them, since the last sign of progress."""
    is_still_waiting: bool = False
    """Whether several of them end the text."""
    cut: LastLine | None = None
    """The last line, if the text ends in the middle of a traceback."""
    cut_files: tuple[str, ...] = ()
    """The files of its last calls."""
    trail: LastLine | None = None
    """The last line, if the text ends in the trail of an error of NCCL."""
    silent: LastLine | None = None
    """A launcher's report of a process that had printed lines before, but no exception."""


def read_log_end(scanned: Scanned, caught: Collection[tuple[str, int]]) -> LogEnd:
    """The end of a log. `caught`: source and line of exceptions that ended nothing."""
    rows = [LastLine(number, raw, split_line(raw)) for number, raw in _unwrapped(scanned)]
    last = max((at for at, row in enumerate(rows) if _shows_progress(row)), default=-1)
    outside_stacks = [at for at, row in enumerate(rows) if not _STACK.match(row.line.text)]
    recent = outside_stacks[-LAST_LINES] if len(outside_stacks) > LAST_LINES else 0
    begin = max(recent, last + 1)
    boxes = _boxes(rows)
    boxed = {at for box in boxes for at in box}
    levels = [found["level"] if (found := _LOGGED.search(row.raw)) else "" for row in rows]
    logged = max((at for at, level in enumerate(levels) if level == "I"), default=-1)
    mild = _mild_rows(rows)
    return LogEnd(
        reports=tuple(
            rows[at]
            for at in range(begin, len(rows))
            if at not in boxed
            and at not in mild
            and not (levels[at] == "E" and at < logged)
            and (scanned.source, rows[at].number) not in caught
        ),
        boxes=tuple(
            tuple(rows[at] for at in box) for box in boxes if box[0] >= begin and _fails(rows, box)
        ),
        progress=rows[last] if last >= recent and rows else None,
        has_progressed=last >= 0,
        waiting=tuple(row for row in rows[begin:] if row.waits),
        is_still_waiting=sum(row.waits for row in rows[-LATEST:]) > 1 and rows[-1].waits,
        cut=_cut_traceback(rows[begin:]),
        cut_files=tuple(
            found["file"] for row in rows[begin:] if (found := _FRAME.match(row.line.text))
        )[-LAST_CALLS:],
        trail=rows[-1] if _ends_in_trail(rows) else None,
        silent=_silent_end(rows),
    )


def _unwrapped(scanned: Scanned) -> Iterator[tuple[int, str]]:
    """The last lines with their numbers; those that a terminal broke are whole."""
    number, whole, lost = 0, "", None
    breaks = breaks_of([len(text) for text in scanned.tail])
    for at, text, after in zip(scanned.tail_numbers, scanned.tail, breaks, strict=True):
        if lost is None:
            if number:
                yield number, whole
            number, whole = at, text
        else:
            whole = f"{whole}{lost}{text}"
        lost = after
    if number:
        yield number, whole


def _is_raised(line: Line) -> bool:
    return bool(RAISED.match(line.text.strip()))


def _mild_rows(rows: Sequence[LastLine]) -> frozenset[int]:
    """Warnings and the like, also where their rest is in the next lines."""
    mild: set[int] = set()
    widest = max((len(row.raw) for row in rows), default=0)
    for at, row in enumerate(rows):
        before = rows[at - 1] if at - 1 in mild else None
        if (
            _is_mild(row.raw)
            or _CALM.search(row.line.text)
            or (before is not None and _continues(row, before, widest))
        ):
            mild.add(at)
    return frozenset(mild)


def _is_mild(raw: str) -> bool:
    return bool(_MILD.search(raw[:_LEVEL_WIDTH]) or HARMLESS.search(raw) or _CALM.search(raw))


def _continues(row: LastLine, before: LastLine, widest: int) -> bool:
    """Whether the line may be the rest of the one before it: in a text that something broke, lines
    are about as wide as the widest."""
    is_broken = widest in WRAPPED_WIDTHS and len(before.raw) > widest - LONGEST_WORD
    if not is_broken or row.number != before.number + 1:
        return False
    starts = row.line.at is not None or _is_raised(row.line) or _MARKED.search(row.raw)
    return not (starts or row.is_fatal)


def _shows_progress(row: LastLine) -> bool:
    text = row.line.text
    return reports_progress(text.encode()) or bool(_SUCCESS.search(text) or _NAN.search(text))


def _boxes(rows: Sequence[LastLine]) -> list[range]:
    """The lines of each box of prose between two rules."""
    rules = [at for at, row in enumerate(rows) if _RULE.match(row.line.text.strip())]
    boxes = [range(first + 1, second) for first, second in pairwise(rules)]
    return [box for box in boxes if 0 < len(box) <= _BOX_LINES and _is_prose(_text(rows, box))]


def _text(rows: Sequence[LastLine], box: range) -> str:
    return " ".join(rows[at].line.text.strip() for at in box)


def _is_prose(text: str) -> bool:
    return bool(_SENTENCE.search(text)) and "exitcode" not in text  # torchrun's report is no prose


def _fails(rows: Sequence[LastLine], box: range) -> bool:
    text = _text(rows, box)
    return bool(_ABORTS.search(text)) and not _GOES_ON.search(text)


def _ends_in_trail(rows: Sequence[LastLine]) -> bool:
    latest = [bool(_TRAIL.search(row.raw)) for row in rows[-LATEST:]]
    return sum(latest) > 1 and latest[-1]


def _silent_end(rows: Sequence[LastLine]) -> LastLine | None:
    ended = next((at for at, row in enumerate(rows) if _LAUNCHER_ENDS.search(row.raw)), None)
    if ended is None:
        return None
    printed = [row for row in rows[:ended] if not _LAUNCHER.search(row.raw)]
    is_raised = any("Traceback (most" in row.raw or _is_raised(row.line) for row in printed)
    return rows[ended] if len(printed) >= LEAST_PRINTED and not is_raised else None


def _cut_traceback(rows: Sequence[LastLine]) -> LastLine | None:
    framed = [row for row in rows if _FRAMED.match(row.line.text)]
    if framed and framed[-1] is rows[-1] and any("Traceback (most" in row.raw for row in framed):
        return rows[-1]
    frames = sum(bool(_FRAME.match(row.line.text)) for row in rows)
    if frames < LEAST_FRAMES and not any("Traceback (most" in row.line.text for row in rows):
        return None
    for at in range(len(rows) - 1, max(-1, len(rows) - 1 - LINES_OF_FRAME), -1):
        if _FRAME.match(rows[at].line.text):
            is_aside = any(ASIDE.search(row.line.text) for row in rows[:at])
            is_whole = any(_is_raised(row.line) for row in rows[at:])
            return None if is_aside or is_whole else rows[-1]
    return None
