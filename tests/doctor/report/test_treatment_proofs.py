"""Trials of treatments in a recording: read with care, and shown with the fix that they prove."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from mgpu_doctor.case.process_metadata import Treated
from mgpu_doctor.case.treatment_proofs import (
    ShareSaved,
    TreatmentProof,
    read_applied,
    read_tried,
)
from mgpu_doctor.findings import Diagnosis
from mgpu_doctor.recording.layout import TRIALS
from mgpu_doctor.report import diagnosis_json, html, markdown, terminal
from mgpu_doctor.report.job_card import facts
from mgpu_doctor.report.proof_text import describe_applied
from mgpu_doctor.report.redaction.redact import no_redaction
from mgpu_doctor.tui.panels.finding_list import selected_finding_lines
from mgpu_doctor.tui.view import View
from tests.support import diagnoses

SCHEMA = json.loads(
    (Path(__file__).parents[3] / "docs" / "diagnosis.schema.json").read_text(encoding="utf-8")
)
HELPS = {
    "values": {"loader-workers": 2},
    "verdict": "helps",
    "saved": {"step_fraction": 0.61, "low": 0.5, "high": 0.7},
}
SAYS = "loader-workers=2 saves 61 % of the step time (50 % to 70 %)"


def tried(folder: Path, *outcomes: Any) -> tuple[TreatmentProof, ...]:
    (folder / TRIALS).write_text(json.dumps({"treatments": list(outcomes)}))
    return read_tried(folder)


def diagnosis(proofs: tuple[TreatmentProof, ...]) -> Diagnosis:
    """Of a job whose finding has the fix `load-in-background`."""
    made = diagnoses.straggler()
    finding = made.findings[0]
    fixes = (replace(finding.fixes[0], id="load-in-background"), *finding.fixes[1:])
    applied = TreatmentProof((("gc-freeze", True),), None, ShareSaved(-0.1, -0.2, -0.05))
    return replace(
        made,
        findings=(replace(finding, fixes=fixes), *made.findings[1:]),
        case=replace(made.case, tried=proofs, applied=applied),
    )


def test_every_view_shows_what_trials_of_a_fix_showed(tmp_path: Path) -> None:
    proofs = tried(
        tmp_path,
        HELPS,
        HELPS | {"values": {"gc-freeze": True}},
        HELPS | {"values": {"loader-prefetch": 4}, "verdict": "changes-the-loss"},
        HELPS | {"values": {"loader-workers": 2, "gc-freeze": True}},
    )
    made = diagnosis(proofs)
    says = f"{SAYS}; loader-prefetch=4: changes the loss"
    printed = " ".join(terminal.render(made, width=120, colour=False).split())
    assert f"tried {says}" in printed
    assert printed.count("gc-freeze") == 1
    assert "treated gc-freeze: in trials, costs 10 %" in printed
    assert f"tried: {says}" in markdown.render(made)
    assert f"tried: {says}" in html.render(made)
    drawn = " ".join(line.plain.strip() for line in selected_finding_lines(made, 120, View()))
    assert says in drawn
    document = diagnosis_json.document(made)
    assert [*Draft202012Validator(SCHEMA).iter_errors(document)] == []
    assert [each["verdict"] for each in document["findings"][0]["fixes"][0]["tried"]] == [
        "helps",
        "changes-the-loss",
    ]
    assert document["job"]["treated"]["values"] == {"gc-freeze": True}
    assert (
        facts(made, no_redaction())["treatments"]
        == "gc-freeze: in trials, costs 10 % of the step time (5 % to 20 %)"
    )


def test_a_treatment_that_changed_nothing_in_any_rank_is_named() -> None:
    info = {"treated": HELPS | {"values": {"loader-workers": 2, "ddp-no-sync": 4, "threads": 2}}}
    reported = [
        Treated(name="loader-workers", changed=1),
        Treated(name="ddp-no-sync"),
        Treated(name="loader-workers"),
        Treated(name="ddp-no-sync"),
    ]
    applied = read_applied(info, reported)
    assert applied is not None
    assert applied.without_effect == ("ddp-no-sync",)
    assert describe_applied(applied).endswith("; ddp-no-sync changed nothing in this run")


@pytest.mark.parametrize(
    ("outcome", "is_read"),
    [
        (HELPS | {"saved": None}, True),
        (HELPS | {"saved": {"step_fraction": 9, "low": 1, "high": 10}}, True),
        (HELPS | {"saved": {"step_fraction": 0.5, "low": 0.6, "high": 0.7}}, True),
        (HELPS | {"saved": {"step_fraction": "all", "low": None}}, True),
        (HELPS | {"values": {"\x1b[31m": 1}}, False),
        (HELPS | {"values": {"loader-workers": "two"}}, False),
        (HELPS | {"values": 3}, False),
        ("helps", False),
    ],
)
def test_proofs_are_read_as_untrusted(outcome: Any, is_read: bool, tmp_path: Path) -> None:
    read = tried(tmp_path, outcome)
    assert [proof.saved for proof in read] == [None] * is_read
    assert read_applied({"treated": outcome}) == next(iter(read), None)
    (tmp_path / TRIALS).write_text("[" * 100_000)
    assert read_tried(tmp_path) == ()
