"""Hand-made ranks and cases of failed jobs, for the tests of the failure and hang rules."""

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
"""When the first rank fails."""


def find(case: Case) -> list[Finding]:
    """The findings of the failure, rendezvous and dead-rank rules, without folding."""
    rules = (*job_failure.RULES, *failed_rendezvous.RULES, *dead_rank_hang.RULES)
    return examine(rules, measure(case))


def error(kind: str = "ValueError", message: str = "bad sample", line: int = 87) -> Error:
    frames = [(9, "main"), (line, "step")]
    trace = "\n".join(f'  File "/home/u/train.py", line {at}, in {name}' for at, name in frames)
    return Error(kind, message, "/home/u/train.py", line, "step", trace, None)


def lost_peer(at: float = AT + 0.05) -> Error:
    message = "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:8616."
    return replace(error("RuntimeError", message, 22), at=at)


def step_records(many: int = 41, seconds: float = 0.02) -> Any:
    records = np.zeros(many, dtype=STEP_DTYPE)
    records["step"] = np.arange(1, many + 1)
    records["wall_ns"] = int(seconds * 1e9)
    return records


def rank(number: int, **changes: Any) -> Rank:
    return make_rank(number, changes.pop("steps", step_records()), **changes)


def dead(number: int, at: float | None = AT, **changes: Any) -> Rank:
    return rank(number, state=State.DEAD, ended=at, **changes)


def secondary_failure(number: int, at: float = AT + 0.05) -> Rank:
    """A rank that raised because its peer had failed."""
    return dead(number, at, exit_code=1, error=lost_peer(at))


def terminated(number: int, at: float = AT + 0.2) -> Rank:
    """A rank that the launcher ended by SIGTERM after another one had failed."""
    return dead(number, at, signal=15)


def waiting(number: int, since: float = AT, **changes: Any) -> Rank:
    now = Now("wait", since, 42, "all_reduce train.py:22", 99)
    return rank(number, state=State.WAITING, now=now, **changes)


def failed_job(ranks: Sequence[Rank], **changes: Any) -> Case:
    """A job that ended with exit code 1, whose launcher reported the ends of its ranks."""
    console = changes.pop("console", Console())
    case = make_case(ranks, **{"outcome": Outcome.FAILED, "exit_code": 1, **changes})
    ends = tuple(
        ProcessEnd(r.pid, r.exit_code, r.signal, r.ended or AT)
        for r in ranks
        if r.pid is not None and (r.exit_code is not None or r.signal is not None)
    )
    return replace(case, ends=ends, console=console)


def logged_end(**facts: Any) -> LoggedEnd:
    known = {"rank": None, "pid": None, "exit_code": None, "signal": None, "first": False}
    return LoggedEnd(**{**known, "error": None, "source": "torchrun summary", **facts})
