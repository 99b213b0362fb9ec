"""What a session tries, and in which order."""

from __future__ import annotations

from mgpu_doctor.advice.treatment import Situation
from mgpu_doctor.case.process_metadata import process_metadata
from mgpu_doctor.findings import Finding, Fix, Predicted, Severity
from mgpu_doctor.treat.treatment_plan import Candidate, plan_treatments

FACTS = {
    "loaders": [{"workers": 0, "dataset_length": 100}],
    "ddp": {"find_unused_parameters": True, "unused_bytes": 0},
    "optimizers": [{"class": "AdamW"}],
    "threads": 2,
}
JOB = Situation("torch", frozenset({"ddp"}), process_metadata(FACTS), 2.0, 1, 0.0, saves=False)


def finding(code: str, fix: str, ratio: float | None) -> Finding:
    predicted = None if ratio is None else Predicted(ratio, None, "formula")
    return Finding(code, Severity.WARNING, 1.0, "", "", fixes=(Fix(fix, "", "", predicted),))


FINDINGS = (
    finding("unused-parameter-scan", "no-search", 0.9),
    finding("input-bound", "load-in-background", 0.6),
    finding("straggler-input", "load-in-background", None),
    finding("straggler-input", "check-shard", 0.1),
)


def test_what_findings_predict_to_gain_most_comes_first() -> None:
    candidates, unfit = plan_treatments(JOB, FINDINGS)
    assert candidates[:2] == [
        Candidate("loader-workers", 2, 0.6, ("input-bound", "straggler-input")),
        Candidate("ddp-no-search", True, 0.9, ("unused-parameter-scan",)),
    ]
    assert [each.name for each in candidates[2:]] == [
        "ddp-bucket-view",
        "ddp-static-graph",
        "optimizer-fused",
        "optimizer-foreach",
        "compile",
        "channels-last",
        "keep-host-memory",
    ]
    reasons = {each.name: each.reason for each in unfit}
    assert reasons["threads"] == "each rank has 2 already"
    assert "--only autocast-bf16" in reasons["autocast-bf16"]


def test_a_finding_without_a_prediction_comes_before_what_no_finding_names() -> None:
    candidates, _ = plan_treatments(JOB, [finding("straggler-input", "load-in-background", None)])
    assert candidates[0].name == "loader-workers"


def test_only_what_is_named_is_tried_and_a_value_of_the_user_always() -> None:
    candidates, unfit = plan_treatments(JOB, FINDINGS, only=["autocast-bf16", "threads"])
    assert [(each.name, each.value) for each in candidates] == [("autocast-bf16", True)]
    assert [each.name for each in unfit] == ["threads"]
    candidates, unfit = plan_treatments(JOB, FINDINGS, wanted={"threads": [7, 3]})
    assert [(each.name, each.value) for each in candidates] == [("threads", 7), ("threads", 3)]
    assert unfit == []
