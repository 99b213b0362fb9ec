"""--compile: what it requires, and that hooks stay outside of compiled code."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from mgpu_trainers.pytorch.common import passes, torch_models

pytestmark = pytest.mark.slow


def test_without_a_compiler_it_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "a-compiler-that-is-not-here")
    why = passes.missing_compiler(torch.device("cpu"))
    assert why is not None
    assert "there is no a-compiler-that-is-not-here: install one" in why


def test_blocks_are_compiled_and_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(forward: Any, **_: Any) -> Any:
        return lambda inputs: 2 * forward(inputs)

    monkeypatch.setattr(torch, "compile", twice)
    model = torch_models.build("cnn-nano", 10).eval()
    images = torch.rand(2, 1, 8, 8)
    before = model(images)
    names = list(model.state_dict())
    compiled = passes.CompiledBlocks(model)
    seen: list[Any] = []
    first = next(iter(model.get_submodule("blocks").children()))
    first.register_forward_hook(lambda *_: seen.append(1))
    assert not torch.allclose(model(images), before)
    assert (seen, list(model.state_dict())) == ([1], names)
    compiled.undo()
    assert torch.equal(model(images), before)
