"""`module.to(…)`, `module.half()` and `copy.deepcopy(module)` of fake weights: torch itself cannot
change those in place, and its copies of them have two storages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor


@contextmanager
def replaced_when_converted() -> Iterator[None]:
    """Meanwhile a conversion or a copy gives a module new weights; what is shared stays so."""
    known: dict[
        int, tuple[nn.Parameter, nn.Parameter]
    ] = {}  # the old ones, so that ids stay theirs
    before = nn.Module._apply

    def converted(old: nn.Parameter, fn: Callable[[Any], Any]) -> nn.Parameter:
        with torch.no_grad():
            new: nn.Parameter = fn(old)
        if new is old:
            return old
        if id(old) not in known:
            known[id(old)] = old, nn.Parameter(new, old.requires_grad)
        return known[id(old)][1]

    def apply(module: nn.Module, fn: Callable[[Any], Any], recurse: bool = True) -> nn.Module:
        for child in module.children() if recurse else ():
            child._apply(fn)
        for name, weight in module._parameters.items():
            if weight is not None:
                module._parameters[name] = converted(weight, fn)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = fn(buffer)
        return module

    nn.Module._apply = apply  # type: ignore[method-assign]
    copied_before = FakeTensor.__deepcopy__
    FakeTensor.__deepcopy__ = _copied  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        nn.Module._apply = before  # type: ignore[method-assign]
        FakeTensor.__deepcopy__ = copied_before  # type: ignore[method-assign]


def _copied(tensor: FakeTensor, memo: dict[int, Any]) -> Any:
    if id(tensor) not in memo:
        with torch.no_grad():
            new: torch.Tensor = tensor.clone()
        parameter = isinstance(tensor, nn.Parameter)
        wanted = tensor.requires_grad
        memo[id(tensor)] = nn.Parameter(new, wanted) if parameter else new.requires_grad_(wanted)
    return memo[id(tensor)]
