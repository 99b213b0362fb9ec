"""The diagnosis as one self-contained page: light and dark, on paper and on a phone."""

from __future__ import annotations

from mgpu_doctor.findings import Diagnosis
from mgpu_doctor.report import text
from mgpu_doctor.report.event_timeline import events_of
from mgpu_doctor.report.html import sections
from mgpu_doctor.report.html.charts import render_run
from mgpu_doctor.report.html.event_strip import event_strip
from mgpu_doctor.report.html.heat_map import heat_section
from mgpu_doctor.report.html.page import page
from mgpu_doctor.report.html.sections import event_section, last_minute_section
from mgpu_doctor.report.redaction.redact import make_redactor, no_redaction, redact_diagnosis
from mgpu_doctor.report.verdict import leading, named_ranks, verdict


def render(diagnosis: Diagnosis, *, redact: bool = False) -> str:
    """The whole document. Host names and paths stay unless `redact`."""
    hide = make_redactor(diagnosis) if redact else no_redaction()
    if redact:
        diagnosis = redact_diagnosis(diagnosis)
    conclusion = verdict(diagnosis)
    lead = leading(diagnosis)
    further = [finding for finding in diagnosis.findings if finding is not lead]
    culprits = named_ranks(diagnosis)
    parts = [
        sections.header(diagnosis, conclusion),
        event_strip(diagnosis, hide),
        sections.main_finding(diagnosis, lead) if lead else "",
        last_minute_section(diagnosis, hide),
        sections.rank_table(diagnosis),
        sections.stacks(diagnosis),
        heat_section(diagnosis.case.ranks, culprits),
        render_run(diagnosis.case, culprits, hide, events_of(diagnosis).events),
        event_section(diagnosis, hide),
        sections.further(diagnosis, further),
        sections.gap_section(diagnosis),
        sections.job_card(diagnosis, hide),
    ]
    title = f"{text.cut(conclusion.sentence.replace('`', ''), 80)} – mgpu-doctor"
    return page(title, conclusion.tone.value, "\n".join(part for part in parts if part))
