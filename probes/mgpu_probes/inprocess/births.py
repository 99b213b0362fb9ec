"""The birth certificate: what is known of a rank's framework, settings and launch."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from typing import Any

from .rank import number, probe

_MOST = 8
"""Loaders, optimizers and wrapped modules that are described."""
_loaders: dict[int, dict[str, Any]] = {}
optimizers: dict[int, dict[str, Any]] = {}
_ddp: list[dict[str, Any]] = []
_backend: list[str] = []


def certificate() -> dict[str, Any]:
    """All that is known now. Cheap enough to be written a few times a run."""
    torch = sys.modules.get("torch")
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "argv": sys.orig_argv[:64],
        "cwd": _quietly(os.getcwd),
        "launcher": _launcher(),
        "local_world_size": number("LOCAL_WORLD_SIZE", default=0) or None,
        "strategy": _strategy(),
        "backend": _backend[-1] if _backend else None,
        "device": "cpu",
        "clock": probe.device_clock,
        "omp_num_threads": number("OMP_NUM_THREADS", default=0) or None,
        "affinity": _quietly(lambda: len(os.sched_getaffinity(0))),
        "loaders": list(_loaders.values()),
        "optimizers": list(optimizers.values()),
        "ddp": _ddp[0] if _ddp else None,
        "step_sign": (None, "collective", "loader", "backward", "optimizer")[probe.stride.level],
        "groups": [{"name": "default", "ranks": None}],
    }
    if torch is not None:
        facts.update(_of_torch(torch))
    return facts


def _of_torch(torch: Any) -> dict[str, Any]:
    facts = {
        "framework": "torch",
        "framework_version": str(torch.__version__),
        "threads": _quietly(torch.get_num_threads),
        "interop_threads": _quietly(torch.get_num_interop_threads),
    }
    if probe.device_clock == "host" and _quietly(torch.cuda.is_initialized):
        facts["device"] = f"cuda:{torch.cuda.current_device()}"
    dtypes = {o.get("dtype") for o in optimizers.values()} - {None}
    precision = sorted(str(dtype) for dtype in dtypes)
    if _quietly(lambda: torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")):
        precision.append("autocast")
    facts["precision"] = "+".join(precision) or None
    return facts


def _launcher() -> str:
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return "torchrun"
    if "SLURM_PROCID" in os.environ and "RANK" not in os.environ:
        return "slurm"
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        return "multiprocessing"
    return "environment" if "RANK" in os.environ else "none"


def _strategy() -> str:
    if _ddp:
        return "ddp"
    return "manual" if probe.world_size > 1 else "single"


def saw_group(backend: str) -> None:
    """The process group's backend."""
    _backend.append(backend)


def saw_loader(loader: Any) -> None:
    """A DataLoader that is being iterated."""
    key = id(loader)
    if key in _loaders or len(_loaders) >= _MOST:
        return
    _loaders[key] = {
        "workers": getattr(loader, "num_workers", None),
        "batch_size": getattr(loader, "batch_size", None),
        "pin_memory": getattr(loader, "pin_memory", None),
        "prefetch_factor": getattr(loader, "prefetch_factor", None),
        "persistent_workers": getattr(loader, "persistent_workers", None),
        "drop_last": getattr(loader, "drop_last", None),
        "sampler": type(getattr(loader, "sampler", None)).__name__,
        "dataset": type(getattr(loader, "dataset", None)).__name__,
    }


def saw_optimizer(optimizer: Any) -> None:
    """An optimizer that steps."""
    key = id(optimizer)
    if key in optimizers or len(optimizers) >= _MOST:
        return
    groups = getattr(optimizer, "param_groups", None) or [{}]
    parameters = [p for group in groups for p in group.get("params", ())]
    optimizers[key] = {
        "class": type(optimizer).__name__,
        "lr": groups[0].get("lr") if isinstance(groups[0].get("lr"), float) else None,
        "parameters": sum(p.numel() for p in parameters),
        "dtype": str(parameters[0].dtype).removeprefix("torch.") if parameters else None,
    }


def saw_ddp(module: Any) -> None:
    """A DistributedDataParallel that was just made."""
    if len(_ddp) < _MOST:
        _ddp.append(
            {
                "find_unused_parameters": getattr(module, "find_unused_parameters", None),
                "static_graph": getattr(module, "static_graph", None),
                "gradient_as_bucket_view": getattr(module, "gradient_as_bucket_view", None),
                "broadcast_buffers": getattr(module, "broadcast_buffers", None),
                "bucket_cap_bytes": getattr(module, "bucket_bytes_cap", None),
            }
        )


def forget() -> None:
    """In a forked child: what the parent saw is not the child's."""
    _loaders.clear()
    optimizers.clear()
    _ddp.clear()
    _backend.clear()


def _quietly(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (OSError, RuntimeError, AttributeError, TypeError):
        return None
