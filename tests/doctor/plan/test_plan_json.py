"""The JSON of a plan keeps the contract: docs/plan.schema.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from mgpu_doctor.analysis.memory.device_memory import Gpu
from mgpu_doctor.analysis.memory.memory_plan import Plan, Settings, Strategy
from mgpu_doctor.plan.plan_json import render
from mgpu_doctor.plan.planned import PlanRequest, make_plan
from mgpu_doctor.plan.subject import find_subject
from tests.support.in_process_tracing import trace_here

pytestmark = pytest.mark.slow

SCHEMA = json.loads(
    (Path(__file__).parents[3] / "docs" / "plan.schema.json").read_text(encoding="utf-8")
)
GIB = 1 << 30
WIDTH, SAMPLES = 1024, 65536
"""A layer's output has 256 MiB."""


def in_torch(loss: Any = None) -> Any:
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
    return (
        model,
        lambda samples: torch.ones(samples, WIDTH),
        loss or (lambda model, batch: model(batch).sum()),
    )


def in_keras() -> Any:
    import keras
    import tensorflow as tf

    inputs = keras.Input((WIDTH,))
    hidden = keras.layers.Dense(WIDTH, "gelu")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    return (
        model,
        lambda samples: tf.ones((samples, WIDTH)),
        lambda model, batch: tf.reduce_sum(model(batch)),
    )


TARGETS = {
    "mgpu_trainers.pytorch.torch_plan_models:cnn_nano": in_torch,
    "mgpu_trainers.tensorflow.tf_plan_models:cnn_nano": in_keras,
}
"""In the place of what the trainers have."""


def plan_json(name: str, strategy: Strategy, *, gibibytes: int | None = None) -> dict[str, Any]:
    device = None if gibibytes is None else Gpu("mine", gibibytes * GIB, "as given")
    wanted = Plan(Settings(SAMPLES), strategy, 1 if strategy is Strategy.SINGLE else 2)
    asked = PlanRequest(find_subject(name, "cnn-nano"), wanted, device, 60, fixes=True)
    written = render(make_plan(asked, lambda _: None))
    document: dict[str, Any] = json.loads(written)
    jsonschema.validate(document, SCHEMA)
    made = document["prediction"]
    assert sum(made["peak_by_kind"].values()) == made["peak_allocated"]
    assert document["notes"]
    return document


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    trace_here(monkeypatch, **TARGETS)


def test_the_schema_is_one_and_allows_nothing_else() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"schema": "mgpu-doctor/plan/1"}, SCHEMA)


@pytest.mark.parametrize("name", ["torch-ddp", "tf-mirrored"])
def test_what_fits_keeps_it(name: str) -> None:
    strategy = Strategy.DDP if name == "torch-ddp" else Strategy.MIRRORED
    found = plan_json(name, strategy, gibibytes=16)
    assert (found["fits"], found["together"]) == (True, None)
    assert found["largest_batch"] > SAMPLES
    assert found["plan"]["strategy"] == strategy.value
    assert found["framework"] == ("torch" if strategy is Strategy.DDP else "tensorflow")


@pytest.mark.parametrize(("name", "size"), [("torch-single", 1), ("tf-single", 3)])
def test_what_does_not_fit_keeps_it_and_so_does_a_plan_without_a_device(
    name: str, size: int
) -> None:
    found = plan_json(name, Strategy.SINGLE, gibibytes=size)
    assert found["fits"] is False
    assert 0 < found["largest_batch"] < SAMPLES
    assert found["fixes"][0]["fits"] is True
    assert found["together"]["fixes"]
    found = plan_json(name, Strategy.SINGLE)
    assert (found["fits"], found["gpu"], found["largest_batch"]) == (None, None, None)
    declined = {each["id"]: each["reason"] for each in found["not_offered"]}
    if name == "tf-single":
        assert declined["xla"].startswith("not predicted: XLA")
        assert "saves nothing" in declined["memory-growth"]


def test_a_lower_bound_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("a kernel of the GPU is missing")

    trace_here(
        monkeypatch, **{"mgpu_trainers.pytorch.torch_plan_models:cnn_nano": lambda: in_torch(fail)}
    )
    found = plan_json("torch-single", Strategy.SINGLE, gibibytes=16)
    assert (found["method"], found["lower_bound"], found["fits"]) == ("formula", True, None)
    assert len(found["reasons"]) == 2
