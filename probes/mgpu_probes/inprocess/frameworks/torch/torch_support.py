"""Helpers of the torch hooks: wrapping functions, measuring batches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

import torch

from ...probe_context import ProbeContext
from ...wrap import Begins, Ends, Raises, around, follow

probe: ProbeContext

_MOST_VALUES = 16
"""Values of a batch that are inspected for tensors."""

replaced: dict[Callable[..., Any], Callable[..., Any]] = {}
"""Original functions of modules -> their wrapped replacements."""


def follow_compiler(compiler: ModuleType) -> None:
    """Keeps hooks from running inside regions that `torch.compile` compiles."""
    follow(compiler)


def wrap(
    owner: Any, name: str, begins: Begins, ends: Ends, *, raised_at_rest: Raises | None = None
) -> None:
    """Wraps `owner.name`, if there is such a function. `raised_at_rest`: see `around`."""
    original = getattr(owner, name, None)
    if callable(original):
        replacement = around(
            original,
            begins,
            ends,
            probe.fail,
            probe.was_interrupted,
            raised_at_rest=raised_at_rest,
        )
        setattr(owner, name, replacement)
        if isinstance(owner, ModuleType) and replacement is not original:
            replaced[original] = replacement


def ignore_at_rest(_: BaseException) -> None:
    """For hooks that may rest, around functions that do not wait for other ranks."""


def tensors_of(batch: Any) -> Iterator[torch.Tensor]:
    """The tensors among the first values of a batch: a tensor, or plain containers of such."""
    pending = [batch]
    for _ in range(_MOST_VALUES):
        if not pending:
            break
        value = pending.pop(0)
        kind = type(value)
        if kind is torch.Tensor:
            yield value
        elif kind is list or kind is tuple:
            pending[:0] = value[:_MOST_VALUES]
        elif kind is dict or (hasattr(kind, "data") and kind.__name__ == "BatchEncoding"):
            pending[:0] = list(value.values())[:_MOST_VALUES]


def size_of(batch: Any) -> tuple[int, int]:
    """Samples and tokens of a batch; 0 if unknown. Samples are the first dimension of its first
    tensor; tokens are the elements of its first integer matrix. Inspects a few values of plain
    containers."""
    samples = tokens = 0
    for value in tensors_of(batch):
        shape = value.shape
        if shape and not samples:
            samples = int(shape[0])
        if len(shape) == 2 and not value.is_floating_point() and not tokens:
            tokens = int(shape[0]) * int(shape[1])
        if samples and tokens:
            break
    return samples, tokens


def replace_early_imports() -> None:
    """If torch was imported before the probe, replaces the original functions that other modules
    hold under their names by the wrapped ones."""
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if type(names) is not dict:
            continue
        for name, value in list(names.items()):
            if type(value) is FunctionType and value in replaced:
                names[name] = replaced[value]
    functional: Any = sys.modules.get("torch.distributed._functional_collectives")
    table = getattr(functional, "traceable_collective_remaps", None)
    if type(table) is dict:  # torch.compile knows collectives by the function's identity
        for original in [function for function in table if function in replaced]:
            table[replaced[original]] = table.pop(original)
