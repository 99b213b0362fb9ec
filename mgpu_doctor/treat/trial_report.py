"""What a session of trials found, and its JSON (docs/treat.schema.json)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec

from mgpu_doctor.advice.treatment import Effect, Value
from mgpu_doctor.advice.treatment_catalogue import TREATMENTS
from mgpu_doctor.analysis.comparing.step_time_noise import Level
from mgpu_doctor.analysis.trials.memory_effect import MemoryChange, PeakMemory
from mgpu_doctor.analysis.trials.paired_effect import Saving
from mgpu_doctor.analysis.trials.trial_verdict import LossChange, Verdict
from mgpu_doctor.case.treatment_proofs import MOST
from mgpu_doctor.case.untrusted_json import Json
from mgpu_doctor.report.diagnosis_json import plain
from mgpu_doctor.treat.treatment_plan import Candidate, Unfit
from mgpu_doctor.treat.trial_outcome import Outcome

SCHEMA = "mgpu-doctor/treat/1"


@dataclass(frozen=True, slots=True)
class TrialReport:
    """The result of a session, complete or not."""

    command: Sequence[str]
    private: bool
    """Whether what the trials wrote was kept apart."""
    baseline: Level
    """The mean step of the job as it is."""
    runs: int
    """Runs of the job as it is."""
    steps: int
    """Measured steps of each run."""
    memory_bytes: int | None
    """Peak memory of the rank with the most, without treatments."""
    codes: tuple[str, ...]
    """Codes of the findings about the job as it is."""
    candidates: Sequence[Candidate]
    outcomes: Sequence[Outcome]
    unfit: Sequence[Unfit]
    kept: Mapping[str, Value]
    """The treatments to apply; empty: none is shown to help."""
    by_memory: bool
    """Whether the verdicts are about memory, not about the step time."""
    complete: bool
    """Whether everything that was planned was tried or the budget was used up, not interrupted."""

    @property
    def was_tried(self) -> bool:
        """Whether any treatment was tried."""
        nothing = (Verdict.UNTRIED, Verdict.DOES_NOT_FIT)
        return any(outcome.verdict not in nothing for outcome in self.outcomes)

    def find_candidate(self, outcome: Outcome) -> Candidate | None:
        """The candidate of an outcome; None if that is of several treatments together."""
        same = (each for each in self.candidates if {each.name: each.value} == outcome.values)
        return next(same, None)


class SharesJson(TypedDict):
    """Shares of the step time."""

    step_fraction: float
    low: float
    high: float


class LossJson(TypedDict):
    """`LossChange`."""

    difference: float | None
    spread: float
    limit: float


class PeakJson(TypedDict):
    """`PeakMemory`."""

    bytes: int
    spread: int | None
    runs: int


class MemorySharesJson(TypedDict):
    """Shares of the memory."""

    fraction: float
    low: float
    high: float


class MemoryJson(TypedDict):
    """`MemoryChange`."""

    before: PeakJson
    after: PeakJson
    saved: MemorySharesJson


class OutcomeJson(TypedDict):
    """`Outcome`, with what the catalogue and the candidate say."""

    values: dict[str, Value]
    verdict: Verdict
    reason: str | None
    runs: int
    switched: bool
    predicted_step_time_ratio: float | None
    findings: list[str]
    saved: SharesJson | None
    loss: LossJson | None
    memory_bytes: int | None
    memory: MemoryJson | None
    may_change: list[Effect]
    lines: list[str]
    sites: list[str]


def choose_treatments(outcomes: Sequence[Outcome]) -> dict[str, Value]:
    """The treatments to apply: the combination, or the single one, that helps most."""
    helping = [outcome for outcome in outcomes if outcome.verdict is Verdict.HELPS]
    best = max(helping, key=lambda each: each.gain, default=None)
    return dict(best.values) if best is not None else {}


def render_json(report: TrialReport, earlier: Json = None) -> str:
    """The report as indented ASCII JSON that ends in a newline.

    `earlier`: such JSON of an earlier report, untrusted. Its treatments follow, up to `MOST` in
    all, but for those that this report has measured. Those that neither has come last.
    """
    outcomes = [_outcome(report, outcome) for outcome in report.outcomes]
    if earlier is not None:
        outcomes = _merge([*outcomes, *_read_outcomes(earlier)])
    content: dict[str, Any] = plain(
        {
            "schema": SCHEMA,
            "command": list(report.command),
            "goal": "memory" if report.by_memory else "step-time",
            "private": report.private,
            "complete": report.complete,
            "baseline": {
                "step_seconds": report.baseline.seconds,
                "standard_error": report.baseline.error,
                "runs": report.runs,
                "steps": report.steps,
                "memory_bytes": report.memory_bytes,
                "findings": list(report.codes),
            },
            "treatments": outcomes,
            "not_tried": [{"name": each.name, "reason": each.reason} for each in report.unfit],
            "kept": dict(report.kept),
        }
    )
    return json.dumps(content, indent=2, allow_nan=False) + "\n"


def _merge(outcomes: Sequence[OutcomeJson]) -> list[OutcomeJson]:
    """The first result for each treatment and value."""
    merged: dict[str, OutcomeJson] = {}
    for outcome in sorted(outcomes, key=lambda each: each["verdict"] is Verdict.UNTRIED):
        merged.setdefault(json.dumps(outcome["values"], sort_keys=True), outcome)
    return [*merged.values()][:MOST]


def _read_outcomes(content: Json) -> Iterator[OutcomeJson]:
    """The treatments in the JSON of a report, without those that do not keep the schema."""
    listed = content.get("treatments") if isinstance(content, dict) else None
    for outcome in listed if isinstance(listed, list) else ():
        with suppress(msgspec.ValidationError):
            yield msgspec.convert(outcome, OutcomeJson)


def _outcome(report: TrialReport, outcome: Outcome) -> OutcomeJson:
    candidate = report.find_candidate(outcome)
    treatments = [TREATMENTS[name] for name in outcome.values]
    return {
        "values": dict(outcome.values),
        "verdict": outcome.verdict,
        "reason": outcome.reason,
        "runs": outcome.runs,
        "switched": outcome.switched,
        "predicted_step_time_ratio": candidate.ratio if candidate is not None else None,
        "findings": list(candidate.codes) if candidate is not None else [],
        "saved": _saved(outcome.saved),
        "loss": _loss(outcome.loss),
        "memory_bytes": outcome.memory_bytes,
        "memory": format_memory(outcome.memory),
        "may_change": [treatment.effect for treatment in treatments],
        "lines": [
            treatment.write_lines(outcome.values[treatment.name]) for treatment in treatments
        ],
        "sites": list(outcome.sites),
    }


def format_memory(change: MemoryChange | None) -> MemoryJson | None:
    """Memory before and after, and the share that is saved, as JSON."""
    if change is None:
        return None
    saved = change.saved
    return {
        "before": _peak(change.before),
        "after": _peak(change.after),
        "saved": {"fraction": saved.share, "low": saved.low, "high": saved.high},
    }


def _peak(peak: PeakMemory) -> PeakJson:
    return {"bytes": peak.bytes, "spread": peak.spread, "runs": peak.runs}


def _saved(saved: Saving | None) -> SharesJson | None:
    if saved is None:
        return None
    return {"step_fraction": saved.share, "low": saved.low, "high": saved.high}


def _loss(loss: LossChange | None) -> LossJson | None:
    if loss is None:
        return None
    difference = loss.difference if math.isfinite(loss.difference) else None
    return {"difference": difference, "spread": loss.spread, "limit": loss.limit}
