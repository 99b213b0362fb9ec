"""Which of torch's ways to divide a model, or a batch, a script uses: its strategy."""

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
"""Of the first DataParallel."""
_LOCAL_SGD = ("PostLocalSGDState", "PostLocalSGDOptimizer", "ModelAverager")
"""Classes, each in a module of its own."""


def patch_fully_shard(module: ModuleType) -> None:
    """Wraps `fully_shard` (FSDP2)."""
    wrap(module, "fully_shard", _nothing, _uses("fsdp"))


def patch_fsdp_state(module: ModuleType) -> None:
    """Wraps what FSDP2 calls before and after the forward pass of each of its modules, where it has
    asked torch.compile not to look."""
    state = getattr(module, "FSDPState", None)
    if state is not None:
        wrap(state, "_root_pre_forward", _enters, _nothing_follows)
        wrap(state, "_register_pre_backward_hook", _leaves, forward_ends)


def patch_fsdp(module: ModuleType) -> None:
    """Wraps the constructor and `forward` of `FullyShardedDataParallel` (FSDP1)."""
    wrap(module.FullyShardedDataParallel, "forward", _forwards, forward_ends)
    wrap(module.FullyShardedDataParallel, "__init__", _nothing, _uses("fsdp"))


def patch_tensor(module: ModuleType) -> None:
    """Wraps `parallelize_module`."""
    wrap(module, "parallelize_module", _nothing, _uses("tensor"))


def patch_zero(module: ModuleType) -> None:
    """Wraps the constructor of `ZeroRedundancyOptimizer`."""
    wrap(module.ZeroRedundancyOptimizer, "__init__", _nothing, _uses("zero1"))


def patch_local_sgd(module: ModuleType) -> None:
    """Wraps the constructors of what lets ranks learn by themselves and averages their weights."""
    for name in _LOCAL_SGD:
        if hasattr(module, name):
            wrap(getattr(module, name), "__init__", _nothing, _uses("localsgd"))


def patch_data_parallel(module: ModuleType) -> None:
    """Wraps the constructor of `DataParallel`."""
    wrap(module.DataParallel, "__init__", _making, _made)


def _is_inner(state: Any) -> bool:
    """Whether this is a module within another one that is sharded; not known before the first
    pass, which begins with the outermost."""
    return getattr(state, "_is_root", None) is False


def _enters(args: tuple[Any, ...], _: dict[str, Any]) -> None:
    if not _is_inner(args[0]):
        forward_begins((args[1], *args[2]), args[3])


def _leaves(args: tuple[Any, ...], _: dict[str, Any]) -> bool | None:
    trains = probe.on and get_ident() == probe.owner  # not what is computed again in backward
    return torch.is_grad_enabled() if trains and not _is_inner(args[0]) else None


def _forwards(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool | None:
    return None if _is_inner(args[0]) else forward_begins(args, kwargs)


def _nothing_follows(_: Any, __: Any) -> None:
    """What has begun ends elsewhere."""


def _nothing(_: tuple[Any, ...], __: dict[str, Any]) -> bool | None:
    return True if probe.on else None


def uses(strategy: str) -> None:
    """This way is in use."""
    probe.objects.strategies.add(strategy)
    # All their waits are calls that Python makes; only DDP waits where nobody sees it.
    autograd.this.engine_waits = bool(ddp_reducer.known)


def _uses(strategy: str) -> Callable[[bool, Any], None]:
    return lambda _, __: uses(strategy)


def _making(args: tuple[Any, ...], _: dict[str, Any]) -> Any:
    return args[0] if probe.on else None


def _made(module: Any, _: Any) -> None:
    probe.objects.strategies.add("dp")
    if not _devices:
        _devices.append(len(getattr(module, "device_ids", None) or ()))


def _data_parallel() -> dict[str, Any]:
    return {"data_parallel": {"devices": _devices[0]}} if _devices else {}


_MOST = 64
"""Stages that are listed."""
_held: set[int] = set()
_pipeline_facts: dict[str, Any] = {}


def patch_stage(module: ModuleType) -> None:
    """Wraps the constructor of a stage."""
    stage = getattr(module, "_PipelineStageBase", None)
    if stage is not None:
        wrap(stage, "__init__", _making, _stage_made)


def patch_schedules(module: ModuleType) -> None:
    """Wraps the constructor of a schedule."""
    schedule = getattr(module, "_PipelineSchedule", None)
    if schedule is not None:
        wrap(schedule, "__init__", _making, _schedule_made)


def _stage_made(stage: Any, _: Any) -> None:
    uses("pipeline")
    number = getattr(stage, "stage_index", None)
    if isinstance(number, int) and len(_held) < _MOST:
        _held.add(number)
    _pipeline_facts["stages"] = getattr(stage, "num_stages", None)


def _schedule_made(schedule: Any, _: Any) -> None:
    """The first one: another may be for evaluation."""
    _pipeline_facts.setdefault("schedule", type(schedule).__name__)
    _pipeline_facts.setdefault("micro_batches", getattr(schedule, "_n_microbatches", None))


def _pipeline() -> dict[str, Any]:
    return {"pipeline": {**_pipeline_facts, "held": sorted(_held)}} if _held else {}


def _start_anew() -> None:
    """In a new box: a forked child makes its own."""
    _held.clear()
    _pipeline_facts.clear()


def attach(context: ProbeContext) -> None:
    """Adds what this module knows to the process metadata."""
    context.add_metadata(_data_parallel)
    context.add_metadata(_pipeline)
    context.add_reset(_start_anew)
