"""The birth certificate: what is known of a rank's framework, settings and launch."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from typing import Any

from . import training_objects
from .probe_context import number, probe
from .training_objects import Described, holdings

_MOST = 8
"""Loaders and optimizers that are described."""
_loaders: list[Described] = []
optimizers: dict[int, Described] = {}
strategies: set[str] = set()
"""Ways to divide a model or a batch that are in use."""
_BY_DDP = frozenset({"zero1", "localsgd"})
"""Ways for which DistributedDataParallel is only a means."""
_backend: list[str] = []
autocast: list[str] = []
"""The dtype of the first autocast mode that was entered."""
_held: dict[tuple[tuple[int, int], ...], dict[str, Any]] = {}
"""What the optimizers hold, by their states' lengths."""


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
        "visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "device_order": os.environ.get("CUDA_DEVICE_ORDER"),
        "omp_num_threads": number("OMP_NUM_THREADS", default=0) or None,
        "affinity": _quietly(lambda: len(os.sched_getaffinity(0))),
        "loaders": [one.now() for one in _loaders],
        "optimizers": [one.now() for one in optimizers.values()],
        "step_sign": (None, "collective", "loader", "backward", "optimizer")[probe.stride.level],
        "groups": [{"name": "default", "ranks": None}],
        "steps": probe.told,
        **probe.memory.told(),
        **_holdings(),
    }
    if torch is not None:
        facts.update(_of_torch(torch))
    facts |= {"device": probe.accelerator or "cpu", "clock": probe.device_clock}
    for part in probe.metadata_parts:
        for key, value in (_quietly(part) or {}).items():
            known = facts.get(key)
            facts[key] = {**known, **value} if isinstance(known, dict) else value
    return facts


def _of_torch(torch: Any) -> dict[str, Any]:
    if _quietly(lambda: _has_used_cuda(torch)):
        probe.computes_on(f"cuda:{torch.cuda.current_device()}")
    facts = {
        "framework": "torch",
        "framework_version": str(torch.__version__),
        "threads": _quietly(torch.get_num_threads),
        "interop_threads": _quietly(torch.get_num_interop_threads),
        "seed": _quietly(torch.initial_seed),
    }
    dtypes = {one.facts["dtype"] for one in optimizers.values()} - {None}
    precision = sorted(str(dtype) for dtype in dtypes)
    if autocast:
        precision += [autocast[0], "autocast"]
    facts["precision"] = "+".join(precision) or None
    return facts


def _has_used_cuda(torch: Any) -> bool:
    """Whether anything was put on a GPU: the loss may be on the CPU all the same. Asks nothing of
    a driver that the training has not started."""
    return bool(torch.cuda.is_initialized() and torch.cuda.max_memory_allocated())


def _holdings() -> dict[str, Any]:
    """Walked through only where an optimizer or its state is new: some µs a parameter."""
    try:
        known = [one.thing for one in optimizers.values() if one.thing is not None]
        sizes = tuple((id(one), len(getattr(one, "state", ()))) for one in known)
        if sizes not in _held:
            _held.clear()
            _held[sizes] = holdings(known)
        return _held[sizes]
    except Exception:  # an optimizer or tensor of the user's own may raise anything
        return {}


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
    told = strategies - {"ddp"} if strategies & _BY_DDP else set(strategies)
    if any(len(one.facts.get("devices") or ()) > 1 for one in optimizers.values()):
        told.add("mp")
    if told:
        return "+".join(sorted(told))
    if probe.world_size < 2:
        return "single"
    return "ps" if probe.stride.only_updates and probe.sends() else "manual"


def saw_group(backend: str) -> None:
    """The process group's backend."""
    _backend.append(backend)


def saw_loader(loader: Any) -> tuple[int, int] | None:
    """A DataLoader that is being iterated: its place among the loaders and the epoch, both from 0;
    None where it is one too many."""
    place = next((at for at, one in enumerate(_loaders) if one.thing is loader), None)
    if place is None:
        seen = training_objects.loader(loader)
        place = next((at for at, one in enumerate(_loaders) if one.replaced_by(seen)), None)
        if place is None and len(_loaders) >= _MOST:
            return None
        if place is None:
            place = len(_loaders)
            _loaders.append(seen)
        else:  # made anew for each epoch
            seen.facts["epochs"] = _loaders[place].facts["epochs"]
            _loaders[place] = seen
    facts = _loaders[place].now()
    facts["epochs"] += 1
    return place, facts["epochs"] - 1


def saw_optimizer(optimizer: Any) -> None:
    """An optimizer that steps."""
    key = id(optimizer)
    if key not in optimizers and len(optimizers) < _MOST:
        optimizers[key] = training_objects.optimizer(optimizer)


def forget() -> None:
    """In a forked child: what the parent saw is not the child's."""
    _loaders.clear()
    optimizers.clear()
    strategies.clear()
    _backend.clear()
    _held.clear()


def _quietly(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (OSError, RuntimeError, AttributeError, TypeError):
        return None
