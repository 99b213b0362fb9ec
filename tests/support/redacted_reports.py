"""What strangers learn of a diagnosis: its redacted Markdown."""

from __future__ import annotations

import html
import re
from dataclasses import replace

from mgpu_doctor.case.model import Console
from mgpu_doctor.findings import Diagnosis
from mgpu_doctor.report import markdown
from mgpu_doctor.report.redaction.redact import redact_diagnosis
from tests.support import diagnoses


def make_diagnosis(words: str, *, command: tuple[str, ...] = ("torchrun", "train.py")) -> Diagnosis:
    """A diagnosis in which somebody's words are a cause, of a job that was started so."""
    made = diagnoses.straggler()
    job = replace(made.case.job, command=command, cwd="/srv/jobs/today")
    case = replace(made.case, job=job, console=Console((words,)))
    return replace(made, case=case, findings=(replace(made.findings[0], cause=words),))


def redact_words(words: str, *, command: tuple[str, ...] = ("torchrun", "train.py")) -> str:
    """What is left of the cause."""
    return redact_diagnosis(make_diagnosis(words, command=command)).findings[0].cause


def render_page(diagnosis: Diagnosis) -> str:
    """All words of the Markdown as a reader sees them: without marks and escapes."""
    text = html.unescape(markdown.render(diagnosis)).replace("<!-- -->", "")
    return re.sub(r"\\(?=[\\`*_\[\]#|~$:.+=-])", "", text)
