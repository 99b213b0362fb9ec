"""Hand-made endings for the tests of the failure and hang rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mgpu_doctor.analysis.measures import measure
from mgpu_doctor.case.model import (
    Case,
    Console,
    Error,
    LoggedEnd,
    Now,
    Outcome,
    ProcessEnd,
    Rank,
    State,
)
from mgpu_doctor.findings import Finding
from mgpu_doctor.recording.box import STEP_DTYPE
from mgpu_doctor.rules.failures import failed_rendezvous, job_failure
from mgpu_doctor.rules.hang import dead_rank_hang
from tests.support.recorded_diagnoses import examine
from tests.support.synthetic import make_case, make_rank

AT = 1500.0
"""When the first death happens."""


def find(case: Case) -> list[Finding]:
    """What these families find, each rule once."""
    rules = (*job_failure.RULES, *failed_rendezvous.RULES, *dead_rank_hang.RULES)
    return examine(rules, measure(case))


def error(kind: str = "ValueError", message: str = "bad sample", line: int = 87) -> Error:
    frames = [(9, "main"), (line, "step")]
    trace = "\n".join(f'  File "/home/u/train.py", line {at}, in {name}' for at, name in frames)
    return Error(kind, message, "/home/u/train.py", line, "step", trace, None)


def lost_peer(at: float = AT + 0.05) -> Error:
    message = "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:8616."
    return replace(error("RuntimeError", message, 22), at=at)


def stepped(many: int = 41, seconds: float = 0.02) -> Any:
    made = np.zeros(many, dtype=STEP_DTYPE)
    made["step"] = np.arange(1, many + 1)
    made["wall_ns"] = int(seconds * 1e9)
    return made


def rank(number: int, **changes: Any) -> Rank:
    return make_rank(number, changes.pop("steps", stepped()), **changes)


def dead(number: int, at: float | None = AT, **changes: Any) -> Rank:
    return rank(number, state=State.DEAD, ended=at, **changes)


def echo(number: int, at: float = AT + 0.05) -> Rank:
    """A survivor that raised because its peer was gone."""
    return dead(number, at, exit_code=1, error=lost_peer(at))


def terminated(number: int, at: float = AT + 0.2) -> Rank:
    """A survivor that the launcher ended."""
    return dead(number, at, signal=15)


def waiting(number: int, since: float = AT, **changes: Any) -> Rank:
    now = Now("wait", since, 42, "all_reduce train.py:22", 99)
    return rank(number, state=State.WAITING, now=now, **changes)


def failed_job(ranks: Sequence[Rank], **changes: Any) -> Case:
    """A job over with exit code 1, whose ends were seen from outside."""
    console = changes.pop("console", Console())
    case = make_case(ranks, **{"outcome": Outcome.FAILED, "exit_code": 1, **changes})
    ends = tuple(
        ProcessEnd(r.pid, r.exit_code, r.signal, r.ended or AT)
        for r in ranks
        if r.pid is not None and (r.exit_code is not None or r.signal is not None)
    )
    return replace(case, ends=ends, console=console)


def logged(**facts: Any) -> LoggedEnd:
    known = {"rank": None, "pid": None, "exit_code": None, "signal": None, "first": False}
    return LoggedEnd(**{**known, "error": None, "source": "torchrun summary", **facts})
