"""Findings that came and went."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from mgpu_doctor.case.model import Rank
from mgpu_doctor.findings import Diagnosis, Finding, Followed
from mgpu_doctor.report.events.event import Event, Kind, said
from mgpu_doctor.report.text import name_ranks, seconds
from mgpu_doctor.report.verdict import Tone

TOLD = re.compile(r"from the start|\bsteps? \d")
"""How titles tell it: since, since before, after, at a step."""


def findings(diagnosis: Diagnosis, followed: Sequence[Followed]) -> Iterator[Event]:
    """When one began is known by the step since which it holds, or by who saw it come."""
    ranks = diagnosis.case.ranks
    seen = {id(one.finding): one.appeared for one in followed}
    for finding in diagnosis.findings:
        at, since = _moment(finding, ranks), _since(finding)
        if at is None and id(finding) in seen:
            at, since = seen[id(finding)], f"{since}, first seen then"
        yield _event(finding, at, f"{finding.title}{since}")
    for gone in followed:
        if gone.resolved is not None:
            yield _event(gone.finding, gone.appeared, gone.finding.title)
            after = seconds(max(0.0, gone.resolved - gone.appeared))
            went = f"gone after {after}: {gone.finding.title}"
            yield _event(gone.finding, gone.resolved, went, Tone.GOOD)


def _since(finding: Finding) -> str:
    """From which step it holds, unless its title tells. What holds from the first step on is often
    a mean over all of them: nobody says that it was there at once."""
    if finding.since_step is None or TOLD.search(finding.title):
        return ""
    return f", since step {finding.since_step}" if finding.since_step else ", over all steps"


def _event(finding: Finding, at: float | None, words: str, tone: Tone | None = None) -> Event:
    numbers = [culprit.rank for culprit in finding.culprits if culprit.rank is not None]
    who = name_ranks(numbers, limit=3) if numbers else ""
    sentence = said(f"{finding.code}: {words}")
    return Event(Kind.FINDINGS, at, who, sentence, tone or Tone(finding.severity.value))


def _moment(finding: Finding, ranks: Iterable[Rank]) -> float | None:
    """When its culprit, or else any rank, ended the step since which it holds."""
    if finding.since_step is None:
        return None
    culprits = {culprit.rank for culprit in finding.culprits}
    for rank in sorted(ranks, key=lambda rank: rank.rank not in culprits):
        if len(rank.steps) and "end_ns" in (rank.steps.dtype.names or ()):
            later = np.flatnonzero(rank.steps["step"] >= finding.since_step)
            if len(later) and (later[0] > 0 or rank.steps["step"][0] == finding.since_step):
                return float(rank.steps["end_ns"][later[0]]) / 1e9 + rank.clock_offset
    return None
