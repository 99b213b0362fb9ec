"""What a user of TensorFlow is told to type."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mgpu_doctor.findings import Finding, Fix, Severity
from mgpu_doctor.rules.in_tensorflow import HOW, spoken
from tests.support.synthetic import make_rank


def said(*fixes: Fix, framework: str | None = "tensorflow", cause: str = "why") -> Finding:
    finding = Finding(
        code="input-bound",
        severity=Severity.WARNING,
        confidence=0.9,
        title="slow",
        cause=cause,
        fixes=fixes,
    )
    job: Any = SimpleNamespace(framework=framework)
    return spoken(finding, job)


@pytest.mark.parametrize("framework", ["torch", None])
def test_other_frameworks_keep_their_words(framework: str | None) -> None:
    fix = Fix("load-in-background", "Let batches be made ahead", "DataLoader(..., num_workers=4)")
    assert said(fix, framework=framework).fixes == (fix,)


@pytest.mark.parametrize("framework", ["tensorflow", "keras"])
def test_a_fix_with_a_counterpart_is_said_in_tensorflow(framework: str) -> None:
    fix = Fix("load-in-background", "Let batches be made ahead", "DataLoader(..., num_workers=4)")
    (told,) = said(fix, framework=framework).fixes
    assert told.summary == fix.summary
    assert "tf.data.AUTOTUNE" in told.how


def pipeline(**facts: Any) -> Any:
    told = {"operations": ["Batch"], "prefetch": 0, "parallel_calls": None, "cached": False}
    return make_rank(0, [], birth={"pipelines": [{**told, **facts}]})


@pytest.mark.parametrize(
    ("facts", "told", "untold"),
    [
        ({}, "it has no prefetch now".capitalize(), "num_parallel_calls"),
        ({"parallel_calls": 1}, "Its map makes one element at a time now", "already"),
        ({"prefetch": 2, "parallel_calls": 1}, "one element at a time", "no prefetch"),
        ({"prefetch": -1, "parallel_calls": 4}, "parallel calls already", "AUTOTUNE"),
        ({"prefetch": -1, "cached": True}, "Do less of it", ".cache()"),
        ({"prefetch": "x", "parallel_calls": [], "cached": 3}, "Do less of it", "now"),
    ],
)
def test_what_a_data_set_has_already_is_not_advised(
    facts: dict[str, Any], told: str, untold: str
) -> None:
    fix = Fix("load-in-background", "Let batches be made ahead", "DataLoader(..., num_workers=4)")
    job: Any = SimpleNamespace(framework="tensorflow")
    finding = Finding("input-bound", Severity.WARNING, 0.9, "slow", "why", fixes=(fix,))
    (said_now,) = spoken(finding, job, [pipeline(**facts)]).fixes
    assert told in said_now.how
    assert untold not in said_now.how


def test_what_has_no_counterpart_is_not_said() -> None:
    only_torch = Fix("use-ddp", "Let gradients move", "Wrap the model in DistributedDataParallel")
    of_any = Fix("more-memory", "Give the job more memory", "A machine with more memory.")
    assert said(only_torch, of_any).fixes == (of_any,)


def test_a_cause_names_no_function_of_torchs() -> None:
    told = said(cause="saving by other means than torch.save, evaluating by hand")
    assert told.cause == "saving by other means than checkpoints of TensorFlow or Keras, " + (
        "evaluating by hand"
    )


@pytest.mark.parametrize("how", HOW.values())
def test_no_advice_is_torchs(how: str) -> None:
    assert "torch" not in how
    assert "DataLoader" not in how
