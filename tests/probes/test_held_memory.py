"""Memory that training holds between steps, for real and for unusual optimizers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from mgpu_probes.inprocess.training_objects import TrainingObjects, measure_holdings

pytestmark = pytest.mark.slow

WEIGHTS = (64 * 32 + 32) * 4


def trained(kind: Any, **settings: Any) -> Any:
    model = torch.nn.Linear(64, 32)
    made = kind(model.parameters(), lr=0.1, **settings)
    model(torch.randn(2, 64)).sum().backward()
    made.step()
    return made


@pytest.mark.parametrize(
    ("kind", "settings", "states"),
    [
        (torch.optim.SGD, {}, 0),
        (torch.optim.SGD, {"momentum": 0.9}, WEIGHTS),
        (torch.optim.AdamW, {}, 2 * WEIGHTS + 2 * 4),
    ],
)
def test_real_optimizers(kind: Any, settings: dict[str, Any], states: int) -> None:
    optimizer = trained(kind, **settings)
    held = measure_holdings([optimizer])["memory_parts"]
    assert held == {"on": "cpu", "weights": WEIGHTS, "gradients": WEIGHTS, "optimizer": states}
    optimizer.zero_grad()
    assert measure_holdings([optimizer])["memory_parts"] == held, "gradients come again"
    assert measure_holdings([optimizer, optimizer])["memory_parts"]["weights"] == WEIGHTS, (
        "each parameter once"
    )


def test_weights_that_are_frozen_have_no_gradients() -> None:
    model = torch.nn.Linear(64, 32)
    model.weight.requires_grad_(False)
    held = measure_holdings([torch.optim.SGD(model.parameters(), lr=0.1)])["memory_parts"]
    assert (held["weights"], held["gradients"]) == (WEIGHTS, 32 * 4)


def test_what_is_no_torch_optimizer_or_has_too_much_tells_nothing() -> None:
    assert measure_holdings([]) == measure_holdings([object()]) == {}
    many = [torch.nn.Parameter(torch.zeros(1)) for _ in range(5000)]
    assert measure_holdings([torch.optim.SGD(many, lr=0.1)]) == {}


def test_an_optimizer_that_raises_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    objects = TrainingObjects()
    first, second = trained(torch.optim.SGD), trained(torch.optim.AdamW)
    objects.note_optimizer(first)
    assert objects.holdings()["memory_parts"]["weights"] == WEIGHTS
    objects.note_optimizer(second)
    assert objects.holdings()["memory_parts"]["optimizer"] == 2 * WEIGHTS + 2 * 4, "it is new"
    monkeypatch.setattr(type(first), "state", property(lambda _: 1 / 0), raising=False)
    assert objects.holdings() == {}
