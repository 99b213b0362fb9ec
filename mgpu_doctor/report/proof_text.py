"""The treatments of a finding, and what trials of them showed, in a sentence. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mgpu_doctor.advice.treatment import find_situation
from mgpu_doctor.advice.treatment_catalogue import TREATMENTS, describe_values
from mgpu_doctor.case.model import Case
from mgpu_doctor.case.treatment_proofs import TreatmentProof
from mgpu_doctor.findings import Finding, Fix
from mgpu_doctor.formatting import format_share

_VERDICTS = {
    "no-difference-shown": "no difference shown",
    "changes-the-loss": "changes the loss",
    "fails": "the job fails with it",
}


def list_treatments(finding: Finding, case: Case) -> list[str]:
    """The treatments that apply a fix of the finding and fit its job."""
    ids, situation = {fix.id for fix in finding.fixes}, find_situation(case)
    return [
        name
        for name, treatment in TREATMENTS.items()
        if treatment.fix in ids and not isinstance(treatment.find_value(situation), str)
    ]


def find_proofs(fix: Fix, tried: Iterable[TreatmentProof]) -> list[TreatmentProof]:
    """The proofs about treatments that apply this fix, each alone."""
    names = {name for name, treatment in TREATMENTS.items() if treatment.fix == fix.id}
    return [proof for proof in tried if len(proof.values) == 1 and proof.names <= names]


def describe_proofs(fix: Fix, tried: Iterable[TreatmentProof]) -> str:
    """`loader-workers=2 saves 61 % of the step time (50 % to 70 %)`; empty: nothing is known."""
    return "; ".join(_describe_known(find_proofs(fix, tried)))


def _describe_known(proofs: Iterable[TreatmentProof]) -> Iterator[str]:
    for proof in proofs:
        named, outcome = describe_values(dict(proof.values)), describe_outcome(proof)
        if outcome is not None:
            yield f"{named}{':' if proof.verdict in _VERDICTS else ''} {outcome}"


def describe_applied(proof: TreatmentProof) -> str:
    """`loader-workers=2: in trials, saves 61 % of the step time (50 % to 70 %)`, of treatments that
    a job was started with; their names alone if no trial is known. Names those that changed
    nothing."""
    named, outcome = describe_values(dict(proof.values)), describe_outcome(proof)
    shown = named if outcome is None else f"{named}: in trials, {outcome}"
    idle = ", ".join(proof.without_effect)
    return f"{shown}; {idle} changed nothing in this run" if idle else shown


def describe_outcome(proof: TreatmentProof) -> str | None:
    """`saves 61 % of the step time (50 % to 70 %)`; None: nothing was measured."""
    if proof.verdict in _VERDICTS:
        return _VERDICTS[proof.verdict]
    saved = proof.saved
    if saved is None:
        return None
    verb, bounds = ("saves", (saved.low, saved.high))
    if saved.share < 0:
        verb, bounds = ("costs", (-saved.high, -saved.low))
    low, high = map(format_share, bounds)
    return f"{verb} {format_share(abs(saved.share))} of the step time ({low} to {high})"
