"""Whom the rules of failed jobs have to explain. Pure."""

from __future__ import annotations

from mgpu_doctor.case.model import Case, Outcome
from mgpu_doctor.rules.falls.falls import Fall, Kind
from mgpu_doctor.rules.falls.first import first_falls
from mgpu_doctor.rules.hang.stall import stall_of


def fallen(case: Case) -> tuple[Fall, ...]:
    """Who fell first by itself, in a job that failed because of it. Empty: nobody, or the job was
    asked to end, completed, or its survivors still wait (a hang), or how it ended may yet be
    told."""
    if case.job.outcome in (Outcome.KILLED, Outcome.COMPLETED) or stall_of(case) is not None:
        return ()
    culprits = first_falls(case)
    if culprits and case.job.outcome is Outcome.RUNNING and culprits[0].kind is Kind.VANISHED:
        return ()
    return culprits
