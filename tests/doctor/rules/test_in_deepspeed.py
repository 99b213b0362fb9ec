"""What a user of DeepSpeed is told to type."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from mgpu_doctor.findings import Finding, Fix, Predicted, Severity
from mgpu_doctor.rules.in_deepspeed import HOW, spoken
from tests.support.synthetic import make_case

ACCUMULATE = Fix("accumulate", "Add up gradients", "model.no_sync()", Predicted(0.8, None, "why"))
OVERLAP = Fix("use-ddp", "Let gradients move while backward computes", "Wrap the model")
OTHER = Fix("fewer-ranks", "Start fewer ranks", "torchrun --nproc-per-node 2")


def said(strategy: str | None, *, on_cpu: bool = False) -> tuple[Fix, ...]:
    finding = Finding(
        code="communication-bound",
        severity=Severity.WARNING,
        confidence=0.9,
        title="slow",
        cause="why",
        fixes=(ACCUMULATE, OVERLAP, OTHER),
    )
    job: Any = make_case([], strategy=strategy).job
    return spoken(finding, job, on_cpu=on_cpu).fixes


@pytest.mark.parametrize("strategy", [None, "ddp", "manual", "zero1", "not-deepspeed"])
def test_other_jobs_keep_their_words(strategy: str | None) -> None:
    assert said(strategy) == (ACCUMULATE, OVERLAP, OTHER)


@pytest.mark.parametrize("strategy", ["deepspeed", "deepspeed+zero3"])
def test_settings_are_those_of_its_configuration(strategy: str) -> None:
    first, second, third = said(strategy)
    assert '"gradient_accumulation_steps": 4' in first.how
    assert "no_sync" not in first.how
    assert first.predicted is None
    assert '"overlap_comm": true' in second.how
    assert third == OTHER


def test_what_needs_streams_is_not_said_of_cpus() -> None:
    assert [one.id for one in said("deepspeed+zero2", on_cpu=True)] == ["accumulate", "fewer-ranks"]


@pytest.mark.parametrize("how", HOW.values())
def test_what_is_to_be_set_is_json(how: str) -> None:
    settings = re.findall(r'"\w+": (?:\{.*?\}|[\w.]+)', how)
    assert settings
    for one in settings:
        json.loads(f"{{{one}}}")
