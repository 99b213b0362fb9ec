"""The Python API: diagnose, compare and plan from a notebook, a test or CI (docs/python.md).

The functions do what the verbs do and return the same data as their JSON, typed and frozen. A
request that cannot be carried out raises `DoctorError`: one sentence, and the verb's exit code.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from mgpu_doctor.api.comparison_types import Comparison
from mgpu_doctor.api.diagnosis_types import Diagnosis, Evidence, Finding, Fix
from mgpu_doctor.api.plan_types import Plan
from mgpu_doctor.errors import NOTHING_EXAMINED, WRONG_USAGE, DoctorError

if TYPE_CHECKING:
    from mgpu_doctor import findings

__all__ = [
    "Comparison",
    "Diagnosis",
    "DoctorError",
    "Evidence",
    "Finding",
    "Fix",
    "Plan",
    "compare",
    "diagnose",
    "diagnose_all",
    "plan",
]

Subject = str | int | os.PathLike[str]
"""A pid, a recording (its folder, its id or `latest`), or another file or folder that `diagnose`
reads."""


def diagnose(*subjects: Subject) -> Diagnosis:
    """The diagnosis of one job, as `mgpu-doctor diagnose SUBJECT…`. Several subjects together are
    one job, such as a recording and a log. Raises DoctorError."""
    diagnoses = diagnose_all(*subjects)
    if len(diagnoses) > 1:
        raise DoctorError(
            f"{len(diagnoses)} jobs were found: name one of them, or call diagnose_all.",
            WRONG_USAGE,
        )
    return diagnoses[0]


def diagnose_all(*subjects: Subject) -> tuple[Diagnosis, ...]:
    """A diagnosis for each job that the subjects name; without any, for every training job that
    runs on this machine. Raises DoctorError."""
    from mgpu_doctor.api.verb_requests import diagnose_subjects, find_exit_code

    examined = diagnose_subjects([os.fspath(_name(subject)) for subject in subjects], _show_nothing)
    blank = [each for each in examined if find_exit_code(each) == NOTHING_EXAMINED]
    if blank:
        raise DoctorError(_explain_blank(blank[0]), NOTHING_EXAMINED)
    return tuple(_convert(each) for each in examined)


def compare(*recordings: str | os.PathLike[str]) -> Comparison:
    """The comparison of two recordings or more with the first, as `mgpu-doctor compare`; a folder
    that contains recordings stands for all of them. Raises DoctorError."""
    import msgspec

    from mgpu_doctor.api import verb_requests
    from mgpu_doctor.report.comparison_json import document

    folders = verb_requests.find_recordings([os.fspath(each) for each in recordings])
    compared = verb_requests.compare_recordings(folders, _show_nothing)
    return msgspec.convert(document(verb_requests.require_comparison(compared)), Comparison)


def plan(
    subject: str,
    *,
    gpu: str | None = None,
    ranks: int | None = None,
    strategy: str | None = None,
    model: str | None = None,
    batch: int | None = None,
    accumulate: int = 1,
    precision: str = "fp32",
    checkpointing: str = "none",
    optimizer: str = "adamw",
    limit: float = 120,
    fixes: bool = False,
) -> Plan:
    """Whether a training step fits a GPU, as `mgpu-doctor plan SUBJECT` with the same options.
    `limit`: seconds that tracing may take. The step is traced in a process of its own. Raises
    DoctorError."""
    import msgspec

    from mgpu_doctor.api.verb_requests import PlanOptions, plan_memory
    from mgpu_doctor.plan.plan_json import document

    options = PlanOptions(
        name=subject,
        gpu=gpu,
        ranks=ranks,
        strategy=strategy,
        model=model,
        batch=batch,
        accumulate=accumulate,
        precision=precision,
        checkpointing=checkpointing,
        optimizer=optimizer,
        limit=limit,
        fixes=fixes,
    )
    return msgspec.convert(document(plan_memory(options, _show_nothing)), Plan)


def _name(subject: Subject) -> str | os.PathLike[str]:
    return str(subject) if isinstance(subject, int) else subject


def _convert(diagnosis: findings.Diagnosis) -> Diagnosis:
    import msgspec

    from mgpu_doctor.report.diagnosis_json import document

    found: dict[str, Any] = document(diagnosis)
    return msgspec.convert(found, Diagnosis)


def _explain_blank(diagnosis: findings.Diagnosis) -> str:
    """Why nothing could be examined, and what to do about it."""
    subject = diagnosis.case.subject.ref
    if not diagnosis.unexamined:
        return f"nothing could be examined in {subject}."
    gap = diagnosis.unexamined[0]
    return f"nothing could be examined in {subject}: {gap.reason}; {gap.remedy}."


def _show_nothing(_: str) -> None:
    """Takes the place of the verbs' progress line."""
