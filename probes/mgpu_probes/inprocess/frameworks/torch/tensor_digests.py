"""Computes short digests of tensors in host memory, by which ranks can be compared.

A digest covers a few elements, at pseudo-random indexes that are equal on every rank. Regular
indexes could hit the same corner of each image and miss differences. Tensors on a device are left
out, because reading one would wait for the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from marshal import dumps
from typing import Any

import torch

_BATCH_ELEMENTS = 64
_BATCH_TENSORS = 4
_BATCH_VALUES = 16
"""Values of a batch that are searched for tensors."""
PARAMETERS = 64
_PARAMETER_ELEMENTS = 16
_SIZES_KEPT = 128
_GOLDEN = 0x9E3779B97F4A7C15
"""Its multiples modulo 2**64 are spread evenly and without a pattern (Knuth, TAOCP 3, 6.4)."""
_WITHOUT_REFERENCES = 2
"""The last version of `marshal` in which equal values always make equal bytes."""
_places: dict[tuple[int, int], torch.Tensor] = {}


def of_batch(batch: Any) -> str | None:
    """A digest of the batch's first tensors, found in plain containers; None if none is in host
    memory or can be read."""
    tensors: list[torch.Tensor] = []
    pending = [batch]
    for _ in range(_BATCH_VALUES):
        if not pending or len(tensors) == _BATCH_TENSORS:
            break
        value = pending.pop(0)
        if isinstance(value, torch.Tensor):
            tensors += [value] if readable(value) and value.numel() else []
        elif isinstance(value, (list, tuple)):
            pending[:0] = value[:_BATCH_VALUES]
        elif isinstance(value, dict) or type(value).__name__ == "BatchEncoding":
            pending[:0] = list(value.values())[:_BATCH_VALUES]
    values = _elements(tensors, _BATCH_ELEMENTS) if tensors else None
    return None if values is None else _hashed([*_shapes(tensors), values], 6)


def of_weights(parameters: Sequence[torch.Tensor]) -> str | None:
    """`SHAPES.VALUES.SUM`: hashes of the parameters' shapes and of some of their elements, and the
    sum of those elements' absolute values. None: not all parameters are whole and in host memory.
    """
    weights = [parameter for parameter in parameters if parameter.numel()]
    if not weights or not all(map(readable, weights)):
        return None
    chosen = weights[:: -(-len(weights) // PARAMETERS)]
    values = _elements(chosen, _PARAMETER_ELEMENTS)
    if values is None:
        return None
    total = sum(abs(value) for values in values for value in values)
    return f"{_hashed(_shapes(weights), 4)}.{_hashed([values], 6)}.{total:.9g}"


def readable(tensor: torch.Tensor) -> bool:
    """Whether it is an ordinary tensor in host memory: not on a device, not spread over processes
    (DTensor, FSDP's flat parameters), and not without memory (meta, fake)."""
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return plain and tensor.is_cpu and tensor.layout is torch.strided


def _shapes(tensors: Iterable[torch.Tensor]) -> list[Any]:
    return [tuple(tensor.shape) for tensor in tensors]


def _elements(tensors: Sequence[torch.Tensor], most: int) -> list[list[Any]] | None:
    try:
        with torch.no_grad():
            return [tensor.take(_chosen(tensor.numel(), most)).tolist() for tensor in tensors]
    except (RuntimeError, TypeError):  # a kind of number that torch cannot gather
        return None


def _chosen(size: int, most: int) -> torch.Tensor:
    places = _places.get((size, most))
    if places is None:
        if len(_places) >= _SIZES_KEPT:
            _places.clear()
        spread = (((number * _GOLDEN) % 2**64) * size >> 64 for number in range(most))
        places = torch.tensor(range(size) if size <= most else [*spread], device="cpu")
        _places[size, most] = places
    return places


def _hashed(facts: list[Any], length: int) -> str:
    return blake2b(dumps(facts, _WITHOUT_REFERENCES), digest_size=length).hexdigest()
