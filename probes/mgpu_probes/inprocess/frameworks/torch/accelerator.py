"""What the process metadata says of torch: its version, the GPU that a rank computes on, and in
which precision. CUDA is asked only once the training has initialised it; nothing here does, and
nothing waits for a device."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from ...probe_context import ProbeContext
from . import allocator_statistics

probe: ProbeContext

_COUNTS = "autocast_increment_nesting"
"""Called by `autocast.__enter__` after it has set the mode. The method itself is left alone:
TorchScript compiles its source."""


def patch(_: ModuleType) -> None:
    """Sees the first autocast."""
    original = getattr(torch, _COUNTS, None)
    if callable(original):
        _see_first(original)


def _see_first(original: Callable[..., Any]) -> None:
    """Puts something in the place of `original` until an autocast mode has been entered."""

    def counts(*args: Any, **kwargs: Any) -> Any:
        try:
            dtype = _autocast()
            if dtype is not None:
                probe.objects.autocast = dtype
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


def describe() -> dict[str, Any]:
    """Version, threads, seed and precision."""
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
    """Whether anything was put on a GPU: the loss may be on the CPU all the same. Asks nothing of
    a driver that the training has not started."""
    return bool(_read(lambda: torch.cuda.is_initialized() and torch.cuda.max_memory_allocated()))


def _read(setting: Callable[[], Any]) -> Any:
    try:
        return setting()
    except (OSError, RuntimeError, AttributeError, TypeError):
        return None


def attach(context: ProbeContext) -> None:
    """Adds the device to the process metadata, and its memory to the samples."""
    for part in (_device, _tf32, allocator_statistics.describe):
        context.add_metadata(part)
    context.memory.device = allocator_statistics.allocated


def _device() -> dict[str, Any]:
    """Where the parameters are; without an optimizer, the device that is set."""
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
    """By the name of torch 2.9 where there is one: a program that sets it by that name must not be
    asked by the older one, which raises then."""
    precision = getattr(operations, "fp32_precision", None)
    return bool(precision == "tf32" if precision is not None else operations.allow_tf32)
