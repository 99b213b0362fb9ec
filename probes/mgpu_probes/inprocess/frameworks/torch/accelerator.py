"""Adds torch's version, the rank's GPU and the precision to the process metadata.

CUDA is queried only after the training has initialized it. Nothing here initializes it or waits for
a device.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from ...probe_context import ProbeContext
from . import allocator_statistics

probe: ProbeContext

_NESTING_COUNTER = "autocast_increment_nesting"
"""A function that `autocast.__enter__` calls after it has set the mode. `__enter__` itself must not
be wrapped, because TorchScript compiles its source."""


def patch(_: ModuleType) -> None:
    """Watches for the first autocast mode."""
    original = getattr(torch, _NESTING_COUNTER, None)
    if callable(original):
        _watch_first_autocast(original)


def _watch_first_autocast(original: Callable[..., Any]) -> None:
    """Replaces `original` until an autocast mode has been entered, and notes the mode's dtype."""

    def counts(*args: Any, **kwargs: Any) -> Any:
        try:
            dtype = _autocast()
            if dtype is not None:
                probe.objects.autocast = dtype
                setattr(torch, _NESTING_COUNTER, original)
        except Exception as trouble:
            setattr(torch, _NESTING_COUNTER, original)
            probe.fail(trouble)
        return original(*args, **kwargs)

    setattr(torch, _NESTING_COUNTER, counts)


def _autocast() -> str | None:
    for device in ("cuda", "cpu"):
        if torch.is_autocast_enabled(device):
            return str(torch.get_autocast_dtype(device)).removeprefix("torch.")
    return None


def describe() -> dict[str, Any]:
    """Version, threads, seed and precision, for the process metadata."""
    if _has_used_cuda():
        probe.computes_on(f"cuda:{torch.cuda.current_device()}")
    optimizers = probe.objects.optimizers.values()
    precision = sorted(
        {str(optimizer.facts["dtype"]) for optimizer in optimizers if optimizer.facts["dtype"]}
    )
    if probe.objects.autocast:
        precision += [probe.objects.autocast, "autocast"]
    return {
        "framework": "torch",
        "framework_version": str(torch.__version__),
        "threads": _read(torch.get_num_threads),
        "interop_threads": _read(torch.get_num_interop_threads),
        "seed": _read(torch.initial_seed),
        "precision": "+".join(precision) or None,
    }


def _has_used_cuda() -> bool:
    """Whether anything was allocated on a GPU. Does not initialize CUDA."""
    return bool(_read(lambda: torch.cuda.is_initialized() and torch.cuda.max_memory_allocated()))


def _read(setting: Callable[[], Any]) -> Any:
    try:
        return setting()
    except (OSError, RuntimeError, AttributeError, TypeError):
        return None


def attach(context: ProbeContext) -> None:
    """Adds the device to the process metadata, and the device's memory to the memory samples."""
    for part in (_device, _tf32, allocator_statistics.describe):
        context.add_metadata(part)
    context.memory.device = allocator_statistics.allocated


def _device() -> dict[str, Any]:
    """The GPU that holds the parameters, or the current one; empty before CUDA is initialized."""
    if probe.device_clock == "cpu" or not torch.cuda.is_initialized():
        return {}
    index = allocator_statistics.index()
    properties = torch.cuda.get_device_properties(index)
    uuid = str(getattr(properties, "uuid", ""))
    return {
        "device": f"cuda:{index}",
        "device_name": str(properties.name),
        "device_capability": [properties.major, properties.minor],
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
    """Whether TF32 is allowed. Reads torch 2.9's `fp32_precision` if present: once a program has
    set that, torch raises if the older attribute is read."""
    precision = getattr(operations, "fp32_precision", None)
    return bool(precision == "tf32" if precision is not None else operations.allow_tf32)
