"""Helpers of the TensorFlow hooks: wrapping functions, inspecting tensors, measuring batches."""

from __future__ import annotations

import sys
from typing import Any

from ...probe_context import ProbeContext
from ...wrap import Begins, Ends, around

probe: ProbeContext

_MOST_TENSORS = 16
"""Tensors of a batch that `batch_size` inspects."""


def tensorflow() -> Any:
    """The package `tensorflow`. Call it only once the program trains: it raises before the
    import."""
    return sys.modules["tensorflow"]


def loaded_module(name: str) -> Any:
    """The module of this name; None if the program has not imported it."""
    return sys.modules.get(name)


def wrap(owner: Any, name: str, begins: Begins, ends: Ends) -> bool:
    """Wraps `owner.name`; False if there is no such function."""
    original = getattr(owner, name, None)
    if not callable(original):
        return False
    replacement = around(original, begins, ends, probe.fail, probe.was_interrupted)
    # AutoGraph runs such a function as it is; of another one it warns that it cannot convert it.
    vars(replacement).setdefault("autograph_info__", None)
    setattr(owner, name, replacement)
    return True


def hide_caller_frame(error: BaseException) -> None:
    """Removes the calling hook's frame from the traceback that the user sees."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next


def is_eager() -> bool:
    """Whether operations run at once; False while a graph is being traced."""
    return bool(tensorflow().executing_eagerly())


def tensors(value: Any) -> list[Any]:
    """All tensors in a nested structure; the values of each replica are listed separately."""
    flat = tensorflow().nest.flatten(value, expand_composites=True)
    return [tensor for tensor in flat if hasattr(tensor, "shape") and hasattr(tensor, "dtype")]


def batch_size(batch: Any) -> tuple[int, int]:
    """Samples and tokens of a batch, summed over replicas; 0 if unknown. Samples are the first
    dimension of the first tensor; tokens are the elements of the first integer matrix."""
    samples = tokens = 0
    for part in split_replicas(batch):
        first_size = counted = 0
        for tensor in tensors(part)[:_MOST_TENSORS]:
            shape = tuple(tensor.shape)
            if None in shape or not shape:
                continue
            first_size = first_size or int(shape[0])
            if len(shape) == 2 and tensor.dtype.is_integer:
                counted = counted or int(shape[0]) * int(shape[1])
        samples, tokens = samples + first_size, tokens + counted
    return samples, tokens


def split_replicas(batch: Any) -> list[Any]:
    """The part of the batch that each replica gets."""
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
