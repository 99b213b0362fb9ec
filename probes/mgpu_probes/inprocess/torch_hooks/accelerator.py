"""The GPU that a rank computes on, and in which precision. CUDA is asked only once the training
has initialised it; nothing here does, and nothing waits for a device."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from .. import process_metadata
from ..probe_context import probe
from . import allocator_statistics

_COUNTS = "autocast_increment_nesting"
"""Called by `autocast.__enter__` after it has set the mode. The method itself is left alone:
TorchScript compiles its source."""


def patch(_: ModuleType) -> None:
    """Has the birth certificate tell of the device, and sees the first autocast."""
    if _device in probe.metadata_parts:
        return
    for part in (_device, _tf32, allocator_statistics.told):
        probe.add_metadata(part)
    probe.memory.device = allocator_statistics.allocated
    original = getattr(torch, _COUNTS, None)
    if callable(original):
        _see_first(original)


def _see_first(original: Callable[..., Any]) -> None:
    """Puts something in the place of `original` until an autocast mode has been entered."""

    def counts(*args: Any, **kwargs: Any) -> Any:
        try:
            dtype = _autocast()
            if dtype is not None:
                process_metadata.autocast.append(dtype)
                setattr(torch, _COUNTS, original)
        except Exception as trouble:
            setattr(torch, _COUNTS, original)
            probe.fail(trouble)
        return original(*args, **kwargs)

    setattr(torch, _COUNTS, counts)


def _autocast() -> str | None:
    for device in ("cuda", "cpu"):
        if torch.is_autocast_enabled(device):
            return str(torch.get_autocast_dtype(device)).removeprefix("torch.")
    return None


def _device() -> dict[str, Any]:
    """Where the parameters are; without an optimizer, the device that is set."""
    if probe.device_clock == "cpu" or not torch.cuda.is_initialized():
        return {}
    index = allocator_statistics.index()
    told = torch.cuda.get_device_properties(index)
    uuid = str(getattr(told, "uuid", ""))
    return {
        "device": f"cuda:{index}",
        "device_name": str(told.name),
        "device_capability": [told.major, told.minor],
        "device_uuid": f"GPU-{uuid}" if uuid and not uuid.startswith(("GPU-", "MIG-")) else uuid,
    }


def _tf32() -> dict[str, Any]:
    """Whether float32 matrix products and convolutions may use TF32."""
    if not torch.cuda.is_initialized():
        return {}
    cudnn: Any = torch.backends.cudnn
    return {
        "tf32": _allowed(torch.backends.cuda.matmul),
        "tf32_convolutions": _allowed(getattr(cudnn, "conv", cudnn)),
    }


def _allowed(operations: Any) -> bool:
    """By the name of torch 2.9 where there is one: a program that sets it by that name must not be
    asked by the older one, which raises then."""
    told = getattr(operations, "fp32_precision", None)
    return bool(told == "tf32" if told is not None else operations.allow_tf32)
