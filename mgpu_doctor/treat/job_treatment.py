"""Treats one job: measures and diagnoses it, tries the treatments that fit, combines what helps."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mgpu_doctor.advice.treatment import Value, find_situation
from mgpu_doctor.analysis.trials.trial_verdict import Verdict
from mgpu_doctor.case.model import Case
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Finding
from mgpu_doctor.launch.private_view import why_impossible
from mgpu_doctor.treat.treatment_plan import Candidate, Unfit, plan_treatments
from mgpu_doctor.treat.trial_outcome import Outcome
from mgpu_doctor.treat.trial_report import TrialReport, choose_treatments
from mgpu_doctor.treat.trial_runner import TrialRunner
from mgpu_doctor.treat.trial_session import NOT_REACHED, Session

Report = Callable[[str, float], None]
"""Takes what is being done, and the seconds of the budget that are left."""


@dataclass(slots=True)
class JobTreatment:
    """The treatment of one command. What was measured so far can be read at any time."""

    command: Sequence[str]
    only: Collection[str] = ()
    wanted: Mapping[str, Sequence[Value]] = field(default_factory=dict)
    private: bool = True
    by_memory: bool = False
    """Whether the treatments are to save memory, not time."""
    session: Session | None = None
    findings: tuple[Finding, ...] = ()
    candidates: list[Candidate] = field(default_factory=list)
    unfit: list[Unfit] = field(default_factory=list)
    complete: bool = False

    def run(
        self,
        folder: Path,
        *,
        budget: float,
        steps: int | None,
        report: Report,
        is_stopped: Callable[[], bool] = bool,
    ) -> None:
        """Tries everything. Raises `BaselineError` if the job cannot be measured as it is, and
        `StoppedError`."""
        runner = TrialRunner(self.command, folder, private=self.private, is_stopped=is_stopped)
        session = Session(
            runner.run,
            budget=budget,
            steps=steps,
            clock=time.monotonic,
            report=report,
            by_memory=self.by_memory,
        )
        self.session = session
        session.measure_baseline(self._plan)
        for candidate in self.candidates:
            session.try_values({candidate.name: candidate.value})
        session.settle(keeps_time=len(self.candidates) > 1)
        combined = session.combine(session.outcomes())
        if len(combined) > 1:
            session.try_values(combined)
            session.settle()
        self.complete = True

    def read_report(self) -> TrialReport | None:
        """What was found so far; None: the job as it is was not measured."""
        session = self.session
        if session is None or not session.plain or session.steps is None:
            return None
        outcomes = session.outcomes()
        begun = [outcome.values for outcome in outcomes]
        waiting = [{each.name: each.value} for each in self.candidates]
        outcomes += [
            Outcome(values, Verdict.UNTRIED, NOT_REACHED)
            for values in waiting
            if values not in begun
        ]
        memory = [run.memory_bytes for run in session.plain if run.memory_bytes is not None]
        return TrialReport(
            command=self.command,
            private=self.private,
            baseline=session.baseline,
            runs=len(session.plain),
            steps=session.steps,
            memory_bytes=max(memory, default=None),
            codes=tuple(dict.fromkeys(finding.code for finding in self.findings)),
            candidates=self.candidates,
            outcomes=outcomes,
            unfit=self.unfit,
            kept=choose_treatments(outcomes),
            by_memory=self.by_memory,
            complete=self.complete,
        )

    def _plan(self, case: Case) -> None:
        self.findings = diagnose(case).findings
        self.candidates, self.unfit = plan_treatments(
            find_situation(case), self.findings, only=self.only, wanted=self.wanted
        )


def why_not_private(folder: Path) -> str | None:
    """Why trials cannot be kept from writing on this machine, a clause; None: they can."""
    scratch, kept = folder / "scratch", folder / "kept"
    scratch.mkdir()
    kept.mkdir()
    return why_impossible(scratch, kept)
