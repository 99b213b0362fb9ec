"""`module.to(…)` and `module.half()` of fake weights, which torch itself cannot change in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


@contextmanager
def replaced_when_converted() -> Iterator[None]:
    """Meanwhile a conversion gives a module new weights; weights that are shared stay so."""
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
    try:
        yield
    finally:
        nn.Module._apply = before  # type: ignore[method-assign]
