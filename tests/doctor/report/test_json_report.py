"""The JSON of a diagnosis keeps the contract: docs/diagnosis.schema.json."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from mgpu_doctor.findings import Cost
from mgpu_doctor.report.diagnosis_json import document, render
from tests.support import diagnoses

SCHEMA = json.loads(
    (Path(__file__).parents[3] / "docs" / "diagnosis.schema.json").read_text(encoding="utf-8")
)


def problems(made: Any) -> list[str]:
    return [error.message for error in Draft202012Validator(SCHEMA).iter_errors(made)]


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("name", diagnoses.ALL)
def test_every_diagnosis_is_valid(name: str) -> None:
    text = render(diagnoses.ALL[name])
    assert text.isascii()
    assert problems(json.loads(text)) == []


def test_keys_and_their_order() -> None:
    made = document(diagnoses.straggler())
    contract = ["schema", "subject", "job", "ranks", "coverage", "findings", "unexamined"]
    assert list(made)[: len(contract)] == contract
    assert made["schema"] == "mgpu-doctor/diagnosis/1"
    finding = made["findings"][0]
    assert list(finding) == [
        "code", "severity", "confidence", "title", "culprits", "victims", "cause", "evidence",
        "since_step", "cost", "fixes", "ruled_out", "not_measured",
    ]  # fmt: skip
    assert finding["culprits"] == [{"rank": 2, "host": "node-a", "device": None, "pid": 4002}]
    assert finding["victims"] == [0, 1, 3]
    assert made["ranks"][2]["phases"]["input"] == 0.031
    assert made["ranks"][2]["phases"]["checkpoint"] is None, "not measured is not 0"


def test_what_is_not_finite_is_null() -> None:
    made = diagnoses.straggler()
    finding = replace(
        made.findings[0], cost=Cost(step_fraction=float("nan"), seconds_per_step=float("inf"))
    )
    cost = document(replace(made, findings=(finding,)))["findings"][0]["cost"]
    assert cost == {"step_fraction": None, "seconds_per_step": None, "bytes": None}


def test_array_scalars_become_numbers() -> None:
    made = replace(diagnoses.straggler(), coverage=np.float32(0.5), step_seconds=np.float64(1))
    assert json.loads(render(made))["coverage"] == 0.5


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("surprise",), 1),
        (("job", "outcome"), "fine"),
        (("coverage",), 1.2),
        (("ranks", 0, "state"), "sleeping"),
        (("ranks", 0, "phases", "lunch"), 1.0),
        (("findings", 0, "severity"), "bad"),
        (("findings", 0, "fixes", 0, "predicted"), {}),
    ],
)
def test_the_schema_refuses(path: tuple[str | int, ...], value: object) -> None:
    made = document(diagnoses.straggler())
    place: Any = made
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    assert problems(made)


def test_the_schema_requires_the_contracts_keys() -> None:
    for key in ("schema", "subject", "job", "ranks", "coverage", "findings", "unexamined"):
        made = document(diagnoses.straggler())
        del made[key]
        assert problems(made), key
