"""A rank's failure in words and as evidence."""

from __future__ import annotations

import os
import re
import shlex
import signal
from collections.abc import Iterable
from itertools import takewhile

from mgpu_doctor.analysis.postmortem.exception_texts import in_backward, operation
from mgpu_doctor.analysis.postmortem.rank_failures import FATAL, FailureKind, RankFailure
from mgpu_doctor.case.host_samples import HostSample
from mgpu_doctor.case.model import Case, Error, Job, Rank
from mgpu_doctor.findings import Culprit, Evidence
from mgpu_doctor.formatting import format_ranks, format_share, format_signal
from mgpu_doctor.rules.memory.oom_evidence import describe_full_memory

FULL_MEMORY = 0.95
"""Share of host memory from which the kernel's OOM killer is a likely sender of SIGKILL
(earlyoom and systemd-oomd act at 90 to 95 % by default)."""
BEFORE_DEATH = 60.0
"""A host sample counts if it was taken at most this many seconds before the failure."""
CALLS = 8
LONGEST = 160
"""Characters of an exception's message in a sentence."""
CONSOLE_LINES = 3
_LAUNCHERS_TALE = re.compile(
    r"^[EW]\d{4} \d\d:.*torch/|^Traceback \(most recent call last\)|^\[rank\d+\]:"
)
_FRAME = re.compile(r'^[ \t]*File "([^"]+)", line (\d+),? in (\S+)', re.MULTILINE)
COMMAND_WIDTH = 400

MEANINGS = {
    signal.SIGSEGV: "it accessed invalid memory: usually a bug in a native extension, a binary "
    "built for another torch or CUDA version, or a stack overflow",
    signal.SIGBUS: "mapped memory was not available: usually /dev/shm is full (data-loader "
    "workers), or a mapped file was truncated",
    signal.SIGABRT: "it aborted itself: a failed check in native code, such as a CUDA assertion, "
    "ranks that call different collectives (gloo), corrupted memory, or gloo threads that still "
    "run while Python exits (`terminate called without an active exception`)",
    signal.SIGFPE: "integer division by zero or overflow in native code",
    signal.SIGILL: "an instruction that this CPU does not have: a binary built for a newer CPU",
    signal.SIGSYS: "a system call that the sandbox or container forbids",
    signal.SIGXCPU: "it used up its CPU time limit (`ulimit -t`)",
    signal.SIGXFSZ: "it wrote a file beyond its size limit (`ulimit -f`)",
}
"""What a signal usually means: signal(7), and the reports behind torch's own hints."""
_ON_THE_WAY_OUT = (
    "The process aborted at exit (SIGABRT), which happens occasionally if threads of a process "
    "group still run (measured with gloo and torch 2.13; PyTorch issue 190489)."
)


def who(culprits: Iterable[RankFailure], case: Case) -> str:
    """`Rank 2`, `Ranks 1 and 3`, `Every rank` or `A process of the job`."""
    failures = list(culprits)
    known = [failure.rank for failure in failures if failure.rank is not None]
    if any(failure.everyone for failure in failures) or 1 < len(known) == len(case.ranks):
        return "Every rank"
    return format_ranks(known).capitalize() if known else "A process of the job"


def place(error: Error) -> str | None:
    """`train.py:87`, the file without its folders."""
    if error.file is None:
        return None
    name = os.path.basename(error.file)
    return name if error.line is None else f"{name}:{error.line}"


def headline(error: Error) -> str:
    """`ValueError at train.py:87: bad sample`, the first line of the message alone."""
    at = place(error)
    first = error.message.strip().partition("\n")[0]
    first = f"{first[: LONGEST - 1]}…" if len(first) > LONGEST else first
    name = error.type.rpartition(".")[2]
    return f"{name}{f' at {at}' if at else ''}{f': {first}' if first else ''}"


def call_path(error: Error) -> str:
    """The innermost calls of its traceback in one line: `main train.py:9 → load data.py:4`."""
    frames = [frame for frame in _FRAME.findall(error.traceback) if frame[0][:1] != "<"]
    if error.type == FATAL:  # faulthandler prints the innermost call first
        frames.reverse()
    calls = [f"{name} {os.path.basename(file)}:{line}" for file, line, name in frames[-CALLS:]]
    return " → ".join(["…", *calls] if len(frames) > CALLS else calls)


def after_step(failure: RankFailure) -> str:
    return "" if failure.last_step is None else f" after step {failure.last_step}"


def death(failure: RankFailure) -> str:
    """How it ended, to follow its name: `was killed by SIGKILL after step 41`."""
    step = after_step(failure)
    if failure.kind is FailureKind.EXCEPTION and failure.error is not None:
        inside = f" in its {failure.inside}" if failure.inside else ""
        return f"raised {headline(failure.error)}{inside}"
    if failure.kind is FailureKind.EXIT:
        by = "" if failure.error is None else _by_exit(failure.error)
        return f"ended itself with exit code {failure.exit_code}{step}{by}"
    if failure.kind is FailureKind.VANISHED:
        return f"ended for an unknown reason{step}"
    if failure.kind is FailureKind.SIGNAL and failure.signal is not None:
        leaving = " at exit" if failure.aborted_leaving else ""
        return f"crashed with {format_signal(failure.signal)}{leaving}{step}"
    if failure.signal is not None:
        return f"was killed by {format_signal(failure.signal)}{step}"
    return f"lost its connection to the others{step}"


def _by_exit(error: Error) -> str:
    """`, at train.py:87: no such data set`; a message that is only a number is its exit code."""
    message = error.message.strip().partition("\n")[0][:160]
    at = place(error)
    return f"{f', at {at}' if at else ''}{'' if message.isdigit() else f': {message}'}"


def culprits_of(failures: Iterable[RankFailure]) -> tuple[Culprit, ...]:
    return tuple(
        Culprit(failure.rank, host=failure.host, device=failure.device, pid=failure.pid)
        for failure in sorted(
            failures, key=lambda failure: -1 if failure.rank is None else failure.rank
        )
    )


def evidence_of(
    failure: RankFailure, case: Case, *, memory_of_host: bool = True
) -> tuple[Evidence, ...]:
    """Evidence for this failure, the most informative first."""
    evidence = []
    error = failure.error
    if error is not None:
        where = None if error.file is None else f"{error.file}:{error.line}"
        left = failure.kind is FailureKind.EXIT
        source = "black box" if left or failure.source == "black box" else "console"
        label = "sys.exit" if left else "exception"
        evidence.append(Evidence(label, headline(error), "text", source=source, where=where))
        if path := call_path(error):
            evidence.append(Evidence("calls that led there", path, "text", source=source))
    if failure.signal is not None:
        evidence.append(
            Evidence("signal", format_signal(failure.signal), "signal", source=failure.source)
        )
    elif failure.exit_code is not None:
        evidence.append(Evidence("exit code", failure.exit_code, "code", 0, failure.source))
        if error is None and (printed := printed_before(case)):
            measure = "last lines that the job printed"
            evidence.append(Evidence(measure, printed, "text", source="console"))
    if failure.last_step is not None:
        evidence.append(
            Evidence("last finished step", failure.last_step, "steps", source="black box")
        )
    memory = (
        fullest_memory(case.host_samples, failure.at or case.observed) if memory_of_host else None
    )
    if memory is not None and (
        failure.kind in (FailureKind.KILLED, FailureKind.VANISHED) or memory >= FULL_MEMORY
    ):
        evidence.append(
            Evidence(
                f"host memory in use in the {BEFORE_DEATH:.0f} s before",
                memory,
                "fraction",
                FULL_MEMORY,
                "host samples",
            )
        )
    return tuple(evidence)


def list_survivor_evidence(rank: Rank) -> tuple[Evidence, ...]:
    """The error that a surviving rank raised, as evidence."""
    if rank.error is None:
        return ()
    where = None if rank.error.file is None else f"{rank.error.file}:{rank.error.line}"
    message = headline(rank.error)
    return (Evidence(f"rank {rank.rank} raised", message, "text", source="black box", where=where),)


def printed_before(case: Case) -> str:
    """The last lines of the job's console before the launcher or ranks reported failures."""
    lines = list(takewhile(lambda line: not _LAUNCHERS_TALE.match(line), case.console.tail))
    return "\n".join(lines[-CONSOLE_LINES:])


def fullest_memory(samples: Iterable[HostSample], before: float) -> float | None:
    """The largest share of host memory in use in the minute before a moment."""
    shares = [
        sample.memory_used / sample.memory_total
        for sample in samples
        if sample.memory_used is not None
        and sample.memory_total
        and before - BEFORE_DEATH <= sample.at <= before + 1
    ]
    return max(shares, default=None)


def cause_of(failure: RankFailure, case: Case) -> str:
    """Sentences that say why the rank ended, or the usual reasons if that is unknown."""
    error = failure.error
    if failure.kind is FailureKind.EXCEPTION and error is not None:
        inside = f" in {error.function}()" if error.function not in (None, "", "<module>") else ""
        by = f" of {failure.inside}" if failure.inside else ""
        sentence = f"An uncaught exception{inside}{by} ended it: {headline(error).rstrip('.')}."
        return sentence + (_of_backward(error) if in_backward(error) else "")
    if failure.kind is FailureKind.EXIT:
        if error is not None:
            inside = f" in {error.function}()" if error.function not in (None, "<module>") else ""
            aborted = f" {_ON_THE_WAY_OUT}" if failure.aborted_leaving else ""
            return f"The process itself called `sys.exit`{inside}{_by_exit(error)}.{aborted}"
        return (
            f"The process itself ended with exit code {failure.exit_code}, by `raise SystemExit`, "
            "`exit()`, `os._exit` or an exception that was not recorded."
        )
    if failure.aborted_leaving:
        return f"Its script had finished. {_ON_THE_WAY_OUT}"
    if failure.kind is FailureKind.SIGNAL and failure.signal is not None:
        meaning = MEANINGS.get(signal.Signals(failure.signal)) if _known(failure.signal) else None
        at = place(error) if error is not None and error.type == FATAL else None
        where = f" Its Python stack ended at {at}." if at else ""
        what = f": {meaning}" if meaning else " its own code or another process sent it"
        return f"{format_signal(failure.signal)}{what}.{where}"
    return _of_kill(failure, case)


def _of_kill(failure: RankFailure, case: Case) -> str:
    if failure.memory is not None:
        return f"The kernel's OOM killer killed it: {describe_full_memory(failure.memory)}."
    if failure.kind is FailureKind.VANISHED:
        return (
            "Its process is gone, without an exit code or exception: it was killed by SIGKILL or "
            f"ended by `os._exit`.{_memory_hint(failure, case)}"
        )
    name = format_signal(failure.signal) if failure.signal is not None else "a signal"
    if failure.signal != signal.SIGKILL:
        return f"Someone sent {name} to this process alone, before any other rank ended."
    if failure.is_cleared:
        return (
            "SIGKILL came from outside this process. The kernel's OOM killer did not send it, as "
            "its log does not name the process: a daemon such as earlyoom or systemd-oomd, a "
            f"scheduler or a person did.{_memory_hint(failure, case)}"
        )
    return (
        "SIGKILL came from outside this process; the usual senders are the kernel's OOM killer, a "
        f"scheduler or a person.{_memory_hint(failure, case)}"
    )


def _of_backward(error: Error) -> str:
    """A sentence about the forward operation: hundreds share the line of the backward call."""
    name = operation(error)
    what = (
        f"the gradient of `{name}`" if name else "the gradient of an operation of the forward pass"
    )
    return f" It came from {what}; the line shown is the call that started the backward pass."


def command_of(job: Job) -> str:
    """The job's command line; `COMMAND` if it is unknown."""
    typed = shlex.join(job.command) if job.command else "COMMAND"
    return typed if len(typed) <= COMMAND_WIDTH else f"{typed[:COMMAND_WIDTH]}…"


def _memory_hint(failure: RankFailure, case: Case) -> str:
    memory = fullest_memory(case.host_samples, failure.at or case.observed)
    if memory is None or memory < FULL_MEMORY:
        return ""
    return (
        f" Host memory was {format_share(memory)} full just before, which suggests that memory "
        "was the reason."
    )


def _known(number: int) -> bool:
    return number in signal.valid_signals() and number < signal.SIGRTMIN
