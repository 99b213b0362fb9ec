"""Diagnoses with given words, and their redacted Markdown."""

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
    """A diagnosis of a job with this command, whose console and cause contain `words`."""
    base = diagnoses.straggler()
    job = replace(base.case.job, command=command, cwd="/srv/jobs/today")
    case = replace(base.case, job=job, console=Console((words,)))
    return replace(base, case=case, findings=(replace(base.findings[0], cause=words),))


def redact_words(words: str, *, command: tuple[str, ...] = ("torchrun", "train.py")) -> str:
    """The cause after redaction."""
    return redact_diagnosis(make_diagnosis(words, command=command)).findings[0].cause


def render_page(diagnosis: Diagnosis) -> str:
    """The text of the redacted Markdown as a reader sees it, without escapes."""
    text = html.unescape(markdown.render(diagnosis)).replace("<!-- -->", "")
    return re.sub(r"\\(?=[\\`*_\[\]#|~$:.+=-])", "", text)
