"""What training holds from step to step, of real optimizers and of strange ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from mgpu_probes.inprocess import process_metadata
from mgpu_probes.inprocess.training_objects import holdings, optimizer

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
    one = trained(kind, **settings)
    told = holdings([one])["memory_parts"]
    assert told == {"on": "cpu", "weights": WEIGHTS, "gradients": WEIGHTS, "optimizer": states}
    one.zero_grad()
    assert holdings([one])["memory_parts"] == told, "gradients come again"
    assert holdings([one, one])["memory_parts"]["weights"] == WEIGHTS, "each parameter once"


def test_weights_that_are_frozen_have_no_gradients() -> None:
    model = torch.nn.Linear(64, 32)
    model.weight.requires_grad_(False)
    told = holdings([torch.optim.SGD(model.parameters(), lr=0.1)])["memory_parts"]
    assert (told["weights"], told["gradients"]) == (WEIGHTS, 32 * 4)


def test_what_is_no_torch_optimizer_or_has_too_much_tells_nothing() -> None:
    assert holdings([]) == holdings([object()]) == {}
    many = [torch.nn.Parameter(torch.zeros(1)) for _ in range(5000)]
    assert holdings([torch.optim.SGD(many, lr=0.1)]) == {}


def test_the_birth_certificate_holds_it_whatever_an_optimizer_raises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = trained(torch.optim.SGD)
    monkeypatch.setattr(process_metadata, "optimizers", {1: optimizer(one)})
    assert process_metadata.certificate()["memory_parts"]["weights"] == WEIGHTS
    other = trained(torch.optim.AdamW)
    monkeypatch.setattr(process_metadata, "optimizers", {1: optimizer(one), 2: optimizer(other)})
    assert process_metadata.certificate()["memory_parts"]["optimizer"] == 2 * WEIGHTS + 2 * 4, (
        "it is new"
    )
    monkeypatch.setattr(type(one), "state", property(lambda _: 1 / 0), raising=False)
    assert "memory_parts" not in process_metadata.certificate()
