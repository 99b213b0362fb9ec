"""What the hooks share: the wrapper with this process's probe, and how batches are measured."""

from __future__ import annotations

import sys
from typing import Any

from ...probe_context import ProbeContext
from ...wrap import Begins, Ends, around

probe: ProbeContext

_LOOKED_AT = 16
"""Tensors of a batch."""


def tensorflow() -> Any:
    """The package, which the program has imported. For use once it trains, no earlier."""
    return sys.modules["tensorflow"]


def loaded(name: str) -> Any:
    """A module that the program has imported; None: it has not."""
    return sys.modules.get(name)


def wrap(owner: Any, name: str, begins: Begins, ends: Ends) -> bool:
    """Wraps `owner.name`; False where there is none."""
    original = getattr(owner, name, None)
    if not callable(original):
        return False
    setattr(owner, name, around(original, begins, ends, probe.fail, probe.was_interrupted))
    return True


def unseen(error: BaseException) -> None:
    """Takes the caller's frame out of the traceback of an exception that passes it."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next


def eagerly() -> bool:
    """Whether operations run as they are called; False: a graph is being built."""
    return bool(tensorflow().executing_eagerly())


def tensors(value: Any) -> list[Any]:
    """All tensors in a nest of any kind, those of replicas one by one."""
    flat = tensorflow().nest.flatten(value, expand_composites=True)
    return [tensor for tensor in flat if hasattr(tensor, "shape") and hasattr(tensor, "dtype")]


def size_of(batch: Any) -> tuple[int, int]:
    """Samples and tokens of a batch whose shape is known: the first dimension of the first tensor,
    and the elements of the first integer matrix, over all replicas. 0: unknown."""
    samples = tokens = 0
    for part in parts_of(batch):
        first_size = counted = 0
        for tensor in tensors(part)[:_LOOKED_AT]:
            shape = tuple(tensor.shape)
            if None in shape or not shape:
                continue
            first_size = first_size or int(shape[0])
            if len(shape) == 2 and tensor.dtype.is_integer:
                counted = counted or int(shape[0]) * int(shape[1])
        samples, tokens = samples + first_size, tokens + counted
    return samples, tokens


def parts_of(batch: Any) -> list[Any]:
    """The batch as each replica gets it."""
    flat = tensorflow().nest.flatten(batch)
    values = [getattr(value, "values", None) for value in flat]
    replicas = len(values[0]) if values and type(values[0]) is tuple else 0
    if not replicas:
        return [batch]
    per_replica = [
        replica_values
        for replica_values in values
        if type(replica_values) is tuple and len(replica_values) == replicas
    ]
    return [[replica_values[index] for replica_values in per_replica] for index in range(replicas)]
