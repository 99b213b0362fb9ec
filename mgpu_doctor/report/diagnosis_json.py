"""The diagnosis as one JSON object: the contract with scripts (docs/diagnosis.schema.json)."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import msgspec
from mgpu_probes.inprocess.layout import PHASES

from mgpu_doctor.advice.treatment import Situation, find_situation
from mgpu_doctor.advice.treatment_catalogue import find_by_fix
from mgpu_doctor.case.model import Case
from mgpu_doctor.case.treatment_proofs import TreatmentProof
from mgpu_doctor.findings import Branch, Diagnosis, Evidence, Finding, Fix, RankSummary
from mgpu_doctor.report.proof_text import find_proofs

SCHEMA = "mgpu-doctor/diagnosis/1"


def render(diagnosis: Diagnosis) -> str:
    """The object as indented ASCII JSON that ends in a newline."""
    compact = _encode(_object(diagnosis)).decode()
    indented: str = msgspec.json.format(compact, indent=2)
    usual = indented.isascii() and "\x7f" not in indented
    return (indented if usual else _TO_ESCAPE.sub(_escape, indented)) + "\n"


def document(diagnosis: Diagnosis) -> dict[str, Any]:
    """The object itself, of plain JSON types. Seconds, bytes, fractions 0..1; unknown is None."""
    report: dict[str, Any] = plain(_object(diagnosis))
    return report


def _object(diagnosis: Diagnosis) -> dict[str, Any]:
    case = diagnosis.case
    return {
        "schema": SCHEMA,
        "subject": {"kind": case.subject.kind, "ref": case.subject.ref},
        "job": _job(case),
        "ranks": [_rank(rank) for rank in diagnosis.ranks],
        "coverage": diagnosis.coverage,
        "findings": [finding_object(finding, case) for finding in diagnosis.findings],
        "unexamined": [
            {"probe": gap.probe, "reason": gap.reason, "remedy": gap.remedy}
            for gap in diagnosis.unexamined
        ],
        "observed": case.observed,
        "coverage_reason": diagnosis.coverage_reason,
        "step_seconds": diagnosis.step_seconds,
        "ideal_step_seconds": diagnosis.ideal_step_seconds,
        "waste_fraction": diagnosis.waste_fraction,
        "stacks": [_branch(branch) for branch in diagnosis.tree],
    }


def _job(case: Case) -> dict[str, Any]:
    job, applied = case.job, case.applied
    return {
        "id": job.id,
        "framework": job.framework,
        "strategy": job.strategy,
        "launcher": job.launcher,
        "world_size": job.world_size,
        "hosts": job.hosts,
        "started": job.started,
        "ended": job.ended,
        "outcome": job.outcome,
        "exit_code": job.exit_code,
        "treated": None if applied is None else _proof(applied),
    }


def _rank(rank: RankSummary) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "host": rank.host,
        "pid": rank.pid,
        "device": rank.device,
        "state": rank.state,
        "exit_code": rank.exit_code,
        "signal": rank.signal,
        "last_step": rank.last_step,
        "step_seconds_median": rank.step_seconds_median,
        "phases": {phase: rank.phases.get(phase) for phase in PHASES},
        "where": rank.where,
        "clock": rank.clock,
        "run_ahead_seconds": rank.run_ahead.least if rank.run_ahead else None,
        "run_ahead_seconds_most": rank.run_ahead.most if rank.run_ahead else None,
        "bound_by": rank.bound_by,
        "busy_waiting": None if rank.busy_waiting is None else asdict(rank.busy_waiting),
        "unseen_waits": rank.unseen_waits,
        "still_seconds": rank.still_seconds,
    }


def _branch(branch: Branch) -> dict[str, Any]:
    return {
        "depth": branch.depth,
        "ranks": branch.ranks,
        "processes": branch.processes,
        "calls": branch.calls,
        "doing": branch.doing,
        "operation": branch.operation,
        "culprit": branch.culprit,
    }


def finding_object(finding: Finding, case: Case | None = None) -> dict[str, Any]:
    """A finding as plain values. `case`: its job's; None: it is about no job."""
    situation = None if case is None else find_situation(case)
    return {
        "code": finding.code,
        "severity": finding.severity,
        "confidence": finding.confidence,
        "title": finding.title,
        "culprits": [
            {
                "rank": culprit.rank,
                "host": culprit.host,
                "device": culprit.device,
                "pid": culprit.pid,
            }
            for culprit in finding.culprits
        ],
        "victims": finding.victims,
        "cause": finding.cause,
        "evidence": [_evidence(evidence) for evidence in finding.evidence],
        "since_step": finding.since_step,
        "cost": {
            "step_fraction": finding.cost.step_fraction,
            "seconds_per_step": finding.cost.seconds_per_step,
            "bytes": finding.cost.bytes,
        },
        "fixes": [
            _fix(fix, situation, () if case is None else case.tried) for fix in finding.fixes
        ],
        "ruled_out": finding.ruled_out,
        "not_measured": finding.not_measured,
    }


def _evidence(evidence: Evidence) -> dict[str, Any]:
    return {
        "measure": evidence.measure,
        "value": evidence.value,
        "unit": evidence.unit,
        "baseline": evidence.baseline,
        "source": evidence.source,
        "where": evidence.where,
    }


def _fix(fix: Fix, situation: Situation | None, tried: Sequence[TreatmentProof]) -> dict[str, Any]:
    predicted = fix.predicted
    treatment = None if situation is None else find_by_fix(fix.id, situation)
    return {
        "id": fix.id,
        "summary": fix.summary,
        "how": fix.how,
        "treatment": treatment.name if treatment is not None else None,
        "predicted": None
        if predicted is None
        else {
            "step_time_ratio": predicted.step_time_ratio,
            "memory_bytes": predicted.memory_bytes,
            "basis": predicted.basis,
        },
        "tried": [_proof(proof) for proof in find_proofs(fix, tried)],
    }


def _proof(proof: TreatmentProof) -> dict[str, Any]:
    saved = proof.saved
    return {
        "values": dict(proof.values),
        "verdict": proof.verdict,
        "saved": None
        if saved is None
        else {"step_fraction": saved.share, "low": saved.low, "high": saved.high},
    }


def plain(value: Any) -> Any:
    """Returns a value in JSON types: enum members as their value, array scalars as Python's, NaN
    and infinities as None, tuples as lists, undecodable bytes of file names as `?`."""
    return msgspec.json.decode(_encode(value))


def _encode(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value, enc_hook=_scalar)
    except UnicodeEncodeError:  # the slow way for undecodable bytes, which are rare
        text = json.dumps(msgspec.to_builtins(value, enc_hook=_scalar), ensure_ascii=False)
        known = json.loads(text.encode("utf-8", "replace"), parse_constant=lambda _: None)
        return msgspec.json.encode(known)


def _scalar(value: Any) -> Any:
    """Python's own value of an array scalar, or of a text or number of a class of its own. Raises
    NotImplementedError for anything else."""
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    if not hasattr(value, "item"):
        raise NotImplementedError(f"{type(value).__name__} is no value of JSON")
    return value.item()


_TO_ESCAPE = re.compile(r"[^\x00-\x7e]+")
"""What JSON need not escape, but a terminal may not show or show in another way."""


def _escape(characters: re.Match[str]) -> str:
    return json.dumps(characters[0])[1:-1]
