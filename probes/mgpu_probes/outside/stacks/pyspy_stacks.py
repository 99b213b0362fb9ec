"""Stacks of a process by `py-spy dump --json`."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sysconfig
import time
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any

from mgpu_probes.outside import processes
from mgpu_probes.outside.stacks import bounded_subprocess, stack_threads
from mgpu_probes.outside.stacks.stack_threads import Frame, Json

SOURCE = "py-spy"
NATIVE = "py-spy --native"
MOST_OUTPUT = 8 << 20
PATIENCE = 2.5
"""Seconds for one reading; twice that for native frames. Measured with PyTorch: 12 to 60 ms, native
0.2 to 1.2 s, and more on an overloaded machine."""
READINGS = 3
"""Attempts without a pause. If a process computes in Python, 1 in 40 fails: 1 in 60,000 pauses."""
_SETTLING = 0.25
_NO_BACKTRACE = {"RUST_BACKTRACE": "0", "RUST_LIB_BACKTRACE": "0"}


def parse_dump(raw: bytes, pid: int) -> list[Json]:
    """The threads in the output of `py-spy dump --json`; empty if it is something else."""
    try:
        listed = json.loads(raw)
    except (ValueError, RecursionError):
        return []
    items = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    main = _main(items, pid)
    return [_thread(item, pid, main=item is main) for item in items]


def _thread(item: dict[str, Any], pid: int, *, main: bool) -> Json:
    id = _whole(item.get("os_thread_id"))
    pthread = _whole(item.get("thread_id")) if id is None else None
    return stack_threads.make_thread(
        _frames(item),
        main=main,
        id=id if pthread is None else stack_threads.read_thread_id(pid, pthread),
        name=_text(item.get("thread_name")),
        active=_truth(item.get("active")) if id is not None else None,
        gil=_truth(item.get("owns_gil")),
    )


def is_complete(stack: Json) -> bool:
    """Whether the main thread's stack reaches the function in which Python starts a program.
    Otherwise it is torn, or Python is embedded in another program."""
    first = stack["threads"][0]
    return bool(
        first["main"] and first["frames"] and first["frames"][-1][0] in stack_threads.STARTS
    )


def _main(items: list[dict[str, Any]], pid: int) -> dict[str, Any] | None:
    """The thread that Python names the main thread. If no name is readable, the thread with the id
    of its process, unless ids differ because of a container."""
    named = [item for item in items if item.get("thread_name") == "MainThread"]
    if len(named) == 1:
        return named[0]
    by_id = (one for one in items if one.get("os_thread_id") == pid)
    return next(by_id, items[0] if len(items) == 1 else None)


def _frames(item: dict[str, Any]) -> list[Frame]:
    listed = item.get("frames")
    return [
        (
            _text(one.get("name")) or "?",
            _text(one.get("filename")) or "?",
            _whole(one.get("line")),
        )
        for one in (listed if isinstance(listed, list) else [])
        if isinstance(one, dict)
    ]


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _whole(value: object) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool) and value > 0
    return value if whole and isinstance(value, int) else None


def _truth(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


class Kind(Enum):
    """Why there is no stack."""

    ABSENT = "py-spy is not installed"
    UNSTARTED = "py-spy could not be started"
    DENIED = "the system does not let this user read its memory"
    GONE = "it has ended"
    FOREIGN = "no Python interpreter was found in it"
    LATE = "py-spy did not answer in time"
    TORN = "py-spy could not make sense of its memory"


_LASTING = frozenset({Kind.ABSENT, Kind.UNSTARTED, Kind.DENIED, Kind.GONE, Kind.LATE})
"""For these, trying again changes nothing or takes as long again."""


@dataclass(frozen=True, slots=True)
class Failure:
    """`text`: py-spy's own words, if any."""

    kind: Kind
    text: str = ""


@cache
def find_pyspy() -> str | None:
    """The path of the py-spy of this Python environment or user, else of one on PATH."""
    schemes = (sysconfig.get_default_scheme(), sysconfig.get_preferred_scheme("user"))
    beside = (os.path.join(sysconfig.get_path("scripts", scheme), "py-spy") for scheme in schemes)
    installed = next((one for one in beside if os.access(one, os.X_OK)), None)
    return installed or shutil.which("py-spy")


def read_stack(pid: int, end: float) -> Json | Failure:
    """The process's Python stacks. `end`: deadline on the monotonic clock, in seconds."""
    best: Json | Failure = Failure(Kind.LATE)
    for _ in range(READINGS):
        found = run_dump(pid, end)
        if isinstance(found, Failure):
            best = found if isinstance(best, Failure) else best
            if found.kind in _LASTING:
                return best
        else:
            best = found
            if is_complete(found):
                return best
    if isinstance(best, Failure) and best.kind is Kind.TORN and not _stopped(pid):
        return run_dump(pid, end, pausing=True)
    return best


def read_native_stack(pid: int, end: float) -> Json | Failure:
    """Its stacks with the C functions between. Pauses the process for 0.2 to 1.2 seconds."""
    if _stopped(pid):
        return Failure(Kind.TORN, "native frames of a stopped process cannot be read")
    return run_dump(pid, end, pausing=True, native=True)


def run_dump(
    pid: int, end: float, *, pausing: bool = False, native: bool = False
) -> Json | Failure:
    """The result of one run of py-spy."""
    py_spy = find_pyspy()
    if py_spy is None:
        return Failure(Kind.ABSENT)
    patience = 2 * PATIENCE if native else PATIENCE
    seconds = min(patience, end - time.monotonic())
    if seconds <= 0:
        return Failure(Kind.LATE)
    options = [*([] if pausing else ["--nonblocking"]), *(["--native"] if native else [])]
    command = [py_spy, "dump", "--json", *options, "--pid", str(pid)]
    at = time.time()
    try:
        ran = bounded_subprocess.run_bounded(
            command, seconds=seconds, most=MOST_OUTPUT, env=_NO_BACKTRACE
        )
    except OSError as error:
        return Failure(Kind.UNSTARTED, f"{py_spy}: {error.strerror}")
    if ran.code is None and pausing:
        _let_go(pid)
    if ran.code != 0:
        return _failure(pid, ran)
    threads = parse_dump(ran.out, pid)
    if not any(thread["frames"] for thread in threads):
        return Failure(Kind.TORN, "its stacks had no frames")
    source = NATIVE if native else SOURCE
    return stack_threads.make_stack(pid, at, source, stack_threads.settle_threads(threads, pid))


def _failure(pid: int, ran: bounded_subprocess.BoundedRun) -> Failure:
    said = ran.err.decode("utf-8", "replace")
    process = processes.read_process(pid)
    if process is None or process.ended:
        return Failure(Kind.GONE)
    if ran.late:
        return Failure(Kind.LATE)
    if re.search(r"permission denied|os error 1\b|os error 13\b", said, re.IGNORECASE):
        return Failure(Kind.DENIED)
    if re.search(r"find (python version|a python interpreter|libpython)", said, re.IGNORECASE):
        return Failure(Kind.FOREIGN)
    return Failure(Kind.TORN, _summary(said))


def _summary(said: str) -> str:
    """The error and its innermost cause, from py-spy's report of many lines."""
    lines = [line.strip() for line in said.partition("Stack backtrace")[0].splitlines()]
    messages = [re.sub(r"^(Error:|\d+:)\s*", "", line) for line in lines if line]
    messages = [line for line in messages if line != "Caused by:"]
    return ": ".join(dict.fromkeys([*messages[:1], *messages[-1:]]))[: stack_threads.MOST_TEXT // 2]


def _stopped(pid: int) -> bool:
    process = processes.read_process(pid)
    return process is not None and process.state in "Tt"


def _let_go(pid: int) -> None:
    """Continues a process that a killed py-spy left stopped: PTRACE_ATTACH sends SIGSTOP, which
    may arrive when the tracer is gone (ptrace(2)). The caller has checked that the process was not
    stopped before. SIGCONT does nothing to a running process."""
    end = time.monotonic() + _SETTLING
    while time.monotonic() < end:
        if _stopped(pid):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGCONT)
        time.sleep(0.01)
