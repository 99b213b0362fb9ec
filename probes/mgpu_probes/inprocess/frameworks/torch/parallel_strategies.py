"""Detects torch's parallel strategies that a script uses (FSDP, tensor parallel, pipeline, …), and
marks the forward passes of FSDP."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from types import ModuleType
from typing import Any

import torch

from ...probe_context import ProbeContext
from . import autograd, ddp_reducer
from .ddp import forward_begins, forward_ends
from .torch_support import wrap

probe: ProbeContext

_devices: list[int] = []
"""The number of devices of the first DataParallel module."""
_LOCAL_SGD = ("PostLocalSGDState", "PostLocalSGDOptimizer", "ModelAverager")
"""Classes whose use shows local SGD, each in a module of its own."""


def patch_fully_shard(module: ModuleType) -> None:
    """Wraps `fully_shard` (FSDP2)."""
    wrap(module, "fully_shard", _is_probe_on, _noting("fsdp"))


def patch_fsdp_state(module: ModuleType) -> None:
    """Wraps what FSDP2 calls before and after the forward pass of each of its modules, in functions
    that it has excluded from torch.compile."""
    state = getattr(module, "FSDPState", None)
    if state is not None:
        wrap(state, "_root_pre_forward", _fsdp2_forward_begins, _ignore)
        wrap(state, "_register_pre_backward_hook", _fsdp2_forward_is_over, forward_ends)


def patch_fsdp(module: ModuleType) -> None:
    """Wraps the constructor and `forward` of `FullyShardedDataParallel` (FSDP1)."""
    wrap(module.FullyShardedDataParallel, "forward", _fsdp1_forward_begins, forward_ends)
    wrap(module.FullyShardedDataParallel, "__init__", _is_probe_on, _noting("fsdp"))


def patch_tensor(module: ModuleType) -> None:
    """Wraps `parallelize_module`."""
    wrap(module, "parallelize_module", _is_probe_on, _noting("tensor"))


def patch_zero(module: ModuleType) -> None:
    """Wraps the constructor of `ZeroRedundancyOptimizer`."""
    wrap(module.ZeroRedundancyOptimizer, "__init__", _is_probe_on, _noting("zero1"))


def patch_local_sgd(module: ModuleType) -> None:
    """Wraps the constructors of local SGD: ranks train alone and average their weights at times."""
    for name in _LOCAL_SGD:
        if hasattr(module, name):
            wrap(getattr(module, name), "__init__", _is_probe_on, _noting("localsgd"))


def patch_data_parallel(module: ModuleType) -> None:
    """Wraps the constructor of `DataParallel`."""
    wrap(module.DataParallel, "__init__", _init_begins, _data_parallel_init_ends)


def _is_inner(state: Any) -> bool:
    """Whether this module lies within another sharded one. Known once the first pass has begun,
    which starts with the outermost module."""
    return getattr(state, "_is_root", None) is False


def _fsdp2_forward_begins(args: tuple[Any, ...], _: dict[str, Any]) -> None:
    if not _is_inner(args[0]):
        forward_begins((args[1], *args[2]), args[3])


def _fsdp2_forward_is_over(args: tuple[Any, ...], _: dict[str, Any]) -> bool | None:
    trains = probe.on and get_ident() == probe.owner  # not recomputation by the backward thread
    return torch.is_grad_enabled() if trains and not _is_inner(args[0]) else None


def _fsdp1_forward_begins(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool | None:
    return None if _is_inner(args[0]) else forward_begins(args, kwargs)


def _ignore(_: Any, __: Any) -> None:
    """Never called, because the hook before it returns None: another hook sets the end."""


def _is_probe_on(_: tuple[Any, ...], __: dict[str, Any]) -> bool | None:
    return True if probe.on else None


def note_strategy(strategy: str) -> None:
    """Notes that the strategy is in use."""
    probe.objects.strategies.add(strategy)
    # All other strategies wait in calls from Python; only DDP waits inside autograd's engine.
    autograd.this.engine_waits = bool(ddp_reducer.known)


def _noting(strategy: str) -> Callable[[bool, Any], None]:
    return lambda _, __: note_strategy(strategy)


def _init_begins(args: tuple[Any, ...], _: dict[str, Any]) -> Any:
    return args[0] if probe.on else None


def _data_parallel_init_ends(module: Any, _: Any) -> None:
    probe.objects.strategies.add("dp")
    if not _devices:
        _devices.append(len(getattr(module, "device_ids", None) or ()))


def _describe_data_parallel() -> dict[str, Any]:
    return {"data_parallel": {"devices": _devices[0]}} if _devices else {}


_MOST = 64
"""Pipeline stages of this rank that are listed."""
_stages: set[int] = set()
_pipeline_facts: dict[str, Any] = {}


def patch_stage(module: ModuleType) -> None:
    """Wraps the constructor of a stage."""
    stage = getattr(module, "_PipelineStageBase", None)
    if stage is not None:
        wrap(stage, "__init__", _init_begins, _stage_init_ends)


def patch_schedules(module: ModuleType) -> None:
    """Wraps the constructor of a schedule."""
    schedule = getattr(module, "_PipelineSchedule", None)
    if schedule is not None:
        wrap(schedule, "__init__", _init_begins, _schedule_init_ends)


def _stage_init_ends(stage: Any, _: Any) -> None:
    note_strategy("pipeline")
    number = getattr(stage, "stage_index", None)
    if isinstance(number, int) and len(_stages) < _MOST:
        _stages.add(number)
    _pipeline_facts["stages"] = getattr(stage, "num_stages", None)


def _schedule_init_ends(schedule: Any, _: Any) -> None:
    """Describes the first schedule only, because another one may be for evaluation."""
    _pipeline_facts.setdefault("schedule", type(schedule).__name__)
    _pipeline_facts.setdefault("micro_batches", getattr(schedule, "_n_microbatches", None))


def _describe_pipeline() -> dict[str, Any]:
    return {"pipeline": {**_pipeline_facts, "held": sorted(_stages)}} if _stages else {}


def _reset() -> None:
    """For a new box: a forked child must not report its parent's pipeline."""
    _stages.clear()
    _pipeline_facts.clear()


def attach(context: ProbeContext) -> None:
    """Adds what this module knows to the process metadata."""
    context.add_metadata(_describe_data_parallel)
    context.add_metadata(_describe_pipeline)
    context.add_reset(_reset)
