"""What came of a check: it works, works without something, refuses, fails, or was not run."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from mgpu_doctor.formatting import format_share
from tests.support.jobs import Ended

Json = Mapping[str, Any]
REFUSED = 2
"""The exit code of wrong usage (README: exit codes)."""
LEAST_COVERAGE = 0.8
"""As in tests/e2e/test_frameworks.py: on a loaded machine Python between the phases is slower."""
MOST_DETAIL = 300
_OF_PROCESSES = re.compile(r" of process .*$")
_ERROR = re.compile(r"^(?:\[rank\d+\]:\s*)?(?:[\w.]*(?:Error|Exception|Interrupt)\b.*)$")


class Outcome(str, Enum):
    """How far something works."""

    WORKS = "works"
    WITHOUT = "works without"
    """`detail`: without what."""
    REFUSES = "refuses"
    """`detail`: the sentence."""
    FAILS = "fails"
    """`detail`: what came instead."""
    NOT_RUN = "not run"
    """`detail`: why."""


@dataclass(frozen=True)
class Verdict:
    """`earlier`: what came of the tries before this one, which failed; None: they were not
    counted."""

    outcome: Outcome
    detail: str = ""
    earlier: tuple[str, ...] | None = None


WORKS = Verdict(Outcome.WORKS)


def describe(verdict: Verdict) -> str:
    """A line with what came of it, and what came of earlier tries."""
    tries = "".join(f"; before: {failure}" for failure in verdict.earlier or ())
    return f"{verdict.outcome.value} {verdict.detail}".rstrip() + tries


def fails(detail: str) -> Verdict:
    return Verdict(Outcome.FAILS, detail[:MOST_DETAIL])


@dataclass(frozen=True)
class Observation:
    """A command of the doctor that has ended; `diagnosis`: None where it gave none."""

    ended: Ended
    diagnosis: Json | None


def judge_healthy(
    seen: Observation,
    steps: int,
    *,
    least_coverage: float | None = LEAST_COVERAGE,
    costs: Collection[str] = (),
    stepless: Collection[int] = (),
) -> Verdict:
    """A job that does well: no finding at warning or worse, and each of its steps counted.

    `least_coverage`: None where the phases are not judged. `costs`: codes that it may be reported
    for, because they are true of it. `stepless`: ranks that take no steps."""
    if (broken := _find_broken(seen)) is not None:
        return broken
    diagnosis = seen.diagnosis or {}
    loud = [finding for finding in list_warnings(diagnosis) if finding["code"] not in costs]
    if loud:
        return fails(f"false alarm: {loud[0]['title']}")
    counted = [rank["last_step"] for rank in diagnosis["ranks"]]
    expected = [None if r.get("rank") in stepless else steps - 1 for r in diagnosis["ranks"]]
    if counted != expected or set(expected) == {None}:
        return fails(f"last steps {counted} of {steps} steps")
    coverage = diagnosis["coverage"]
    if least_coverage is not None and (coverage is None or coverage < least_coverage):
        return fails(f"the phases explain {format_share(coverage)} of the time")
    return _without(diagnosis, "probe of ")


def judge_culprit(seen: Observation, code: str, rank: int | None) -> Verdict:
    """A job whose first finding has this code and names this rank, alone."""
    return _find_broken(seen) or judge_finding(seen.diagnosis or {}, code, rank)


def judge_reported(seen: Observation, code: str) -> Verdict:
    """A job of which something is reported that concerns all ranks."""
    if (broken := _find_broken(seen)) is not None:
        return broken
    codes = [finding["code"] for finding in (seen.diagnosis or {})["findings"]]
    return WORKS if code in codes else fails(f"found {', '.join(codes) or 'nothing'}")


def judge_crash(seen: Observation, code: str, rank: int | None) -> Verdict:
    """A job that ended as it would have, with the rank that failed first."""
    if seen.ended.code == 0:
        return fails("the job's exit code is lost: 0")
    if seen.diagnosis is None:
        return fails(last_error(seen.ended.err))
    return judge_finding(seen.diagnosis, code, rank)


def judge_finding(diagnosis: Json, code: str, rank: int | None, place: str = "") -> Verdict:
    """`rank`: None where no rank can be known; `place`: what the evidence must name as a place."""
    loud = list_warnings(diagnosis)
    if not loud:
        mild = ", ".join(finding["code"] for finding in diagnosis["findings"])
        return fails(f"only mentioned: {mild}" if mild else "nothing was found")
    codes = [finding["code"] for finding in loud]
    accused = {culprit["rank"] for finding in loud for culprit in finding["culprits"]}
    wanted = [set(), {None}] if rank is None else [{rank}]
    if codes[0] != code or accused not in wanted:
        return fails(f"found {', '.join(codes)} of ranks {sorted(accused, key=str)}")
    places = [evidence["where"] or "" for evidence in loud[0]["evidence"]]
    if place and not any(place in where for where in places):
        return fails(f"no evidence names {place}")
    return WORKS


def judge_hang(
    diagnosis: Json | None,
    error: str,
    code: str,
    *,
    rank: int | None = 1,
    place: str = "",
    asks: str = "",
) -> Verdict:
    """A hung job, of which this rank is the culprit. `asks`: a source that should have been
    read."""
    if diagnosis is None:
        return fails(last_error(error))
    verdict = judge_finding(diagnosis, code, rank, place)
    if not asks or verdict is not WORKS:
        return verdict
    if any(evidence["source"] == asks for evidence in list_warnings(diagnosis)[0]["evidence"]):
        return WORKS
    unread = _without(diagnosis, asks)
    return Verdict(Outcome.WITHOUT, unread.detail or f"{asks}: it was read and showed nothing")


def judge_trainer(seen: Observation, steps: int, *, all_train: bool = True) -> Verdict:
    """A built-in trainer: it trains and its steps are counted, or refuses in one sentence.

    `all_train`: every rank takes all steps; else some are servers."""
    if (refusal := find_refusal(seen.ended, REFUSED)) is not None:
        return refusal
    if (broken := _find_broken(seen)) is not None:
        return broken
    if "validation loss" not in seen.ended.out:
        return fails("it printed no validation loss")
    counted = [rank["last_step"] for rank in (seen.diagnosis or {})["ranks"]]
    if not counted or (all_train and set(counted) != {steps - 1}):
        return fails(f"last steps {counted} of {steps} steps")
    return WORKS


def find_refusal(ended: Ended, code: int, words: str = "") -> Verdict | None:
    """The sentence of a command that printed it alone, with these words in it, and ended with this
    exit code; None: it did something else."""
    lines = ended.err.strip().splitlines()
    if ended.code != code or len(lines) != 1 or words not in lines[0]:
        return None
    return Verdict(Outcome.REFUSES, lines[0])


def list_warnings(diagnosis: Json) -> Sequence[Json]:
    """The findings at warning or worse."""
    return [finding for finding in diagnosis["findings"] if finding["severity"] != "info"]


def last_error(text: str) -> str:
    """The last line that an exception printed, else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR.match(line)]
    own = [line for line in errors if "ChildFailedError" not in line]
    return (own or errors or lines or ["it printed nothing"])[-1][:MOST_DETAIL]


def without_paths(text: str, folders: Iterable[str]) -> str:
    """The text without folders of this machine."""
    for folder in sorted(folders, key=len, reverse=True):
        text = text.replace(folder, "…")
    return text


def _find_broken(seen: Observation) -> Verdict | None:
    """The failure of a job that should have ended well; None: it did."""
    if seen.ended.code or seen.diagnosis is None:
        return fails(f"exit code {seen.ended.code}: {last_error(seen.ended.err)}")
    return None


def _without(diagnosis: Json, subject: str) -> Verdict:
    """Works, unless something is listed as unexamined whose name begins so."""
    reasons = {
        f"{_OF_PROCESSES.sub('', gap['probe'])}: {gap['reason']}"
        for gap in diagnosis["unexamined"]
        if gap["probe"].startswith(subject)
    }
    return Verdict(Outcome.WITHOUT, "; ".join(sorted(reasons))) if reasons else WORKS
