"""Collects the process metadata: a rank's framework, settings, launcher, loaders, optimizers."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from .probe_context import ProbeContext, number

_BUILT_ON_DDP = frozenset({"zero1", "localsgd"})
"""Strategies that use DistributedDataParallel inside, so that `ddp` is not reported beside them."""
_STEP_SIGNS = (None, "collective", "loader", "backward", "optimizer", "marked")


def describe_process(context: ProbeContext) -> dict[str, Any]:
    """The process metadata as of now. Called after some steps and at most every 30 s."""
    objects = context.objects
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "argv": sys.orig_argv[:64],
        "cwd": _read_or_none(os.getcwd),
        "launcher": _launcher(),
        "local_world_size": number("LOCAL_WORLD_SIZE", default=0) or None,
        "strategy": _strategy(context),
        "backend": objects.backend,
        "visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "device_order": os.environ.get("CUDA_DEVICE_ORDER"),
        "omp_num_threads": number("OMP_NUM_THREADS", default=0) or None,
        "affinity": _read_or_none(lambda: len(os.sched_getaffinity(0))),
        "loaders": [loader.now() for loader in objects.loaders],
        "optimizers": [optimizer.now() for optimizer in objects.optimizers.values()],
        "step_sign": _STEP_SIGNS[context.fast_path.level],
        "groups": [{"name": "default", "ranks": None}],
        "steps": context.recorded,
        **context.memory.describe(),
        **objects.holdings(),
    }
    waits = objects.unseen_waits
    facts["unseen_waits"] = None if waits is None else waits.value
    described: dict[str, Any] = {}
    for adapter in context.adapters:
        # If two adapters give the same key, the first by name wins: TensorFlow describes itself
        # only if it is in use, torch whenever it is imported.
        described = (_read_or_none(partial(adapter.describe, context)) or {}) | described
    facts |= described
    facts |= {"device": context.accelerator or "cpu", "clock": context.device_clock}
    for part in context.metadata_parts:
        for key, value in (_read_or_none(part) or {}).items():
            earlier = facts.get(key)
            facts[key] = {**earlier, **value} if isinstance(earlier, dict) else value
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


def _strategy(context: ProbeContext) -> str:
    objects = context.objects
    strategies = set(objects.strategies)
    if strategies & _BUILT_ON_DDP:
        strategies.discard("ddp")
    optimizers = objects.optimizers.values()
    if any(len(optimizer.facts.get("devices") or ()) > 1 for optimizer in optimizers):
        strategies.add("mp")
    if strategies:
        return "+".join(sorted(strategies))
    if context.world_size < 2:
        return "single"
    return "ps" if context.fast_path.only_updates and context.sends() else "manual"


def _read_or_none(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (OSError, RuntimeError, AttributeError, TypeError):
        return None
