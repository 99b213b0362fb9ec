"""Wraps DeepSpeed's engine: its forward pass, its gradient reduction, its update.

On a GPU the ZeRO optimizers reduce gradients and gather weights in streams of their own. The
compute stream waits for these (`wait_stream`: each bucket of stages 1 and 2, each module of stage
3), or the host does (`synchronize`: at the end of the backward pass, and when stage 3 has too many
reductions in flight). The hooks of streams (`device_events`) see both waits.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ...probe_context import ProbeContext
from ...step_engine import Steps
from ...step_marks import update_skipped, updated
from ..torch.ddp import forward_begins, forward_ends
from ..torch.parallel_strategies import note_strategy
from ..torch.torch_support import wrap

probe: ProbeContext

_STRATEGY = "deepspeed"
_STAGES = {1: "zero1", 2: "zero2", 3: "zero3"}
_configuration: dict[str, Any] = {}


def patch(engine: ModuleType) -> None:
    """Wraps four methods of the engine. Two are private; a version that lacks one goes without."""
    owner = engine.DeepSpeedEngine
    wrap(owner, "__init__", _init_begins, _init_ends)
    wrap(owner, "forward", forward_begins, forward_ends)
    wrap(owner, "_backward_epilogue", _reduction_begins, _reduction_ends)
    wrap(owner, "_take_model_step", _update_begins, _update_ends)


def _init_begins(args: tuple[Any, ...], _: dict[str, Any]) -> Any:
    return args[0] if probe.on else None


def _init_ends(engine: Any, _: Any) -> None:
    note_strategy(_STRATEGY)
    if type(engine).__name__ == "PipelineEngine":
        note_strategy("pipeline")
    stage = _setting(engine, "zero_optimization_stage")
    if stage in _STAGES:
        note_strategy(_STAGES[stage])
    _configuration.update(
        zero_stage=stage,
        accumulation=_setting(engine, "gradient_accumulation_steps"),
        bucket_elements=_setting(engine, "zero_reduce_bucket_size"),
    )


def _setting(engine: Any, setting: str) -> int | None:
    """An integer setting of the engine, read by one of its methods; None: unknown."""
    method = getattr(engine, setting, None)
    try:
        value = method() if callable(method) else None
    except Exception:  # the engine's constructor has failed
        return None
    return int(value) if isinstance(value, int) else None


def _reduction_begins(args: tuple[Any, ...], _: dict[str, Any]) -> bool | None:
    """Marks the reduction of gradients at the end of the backward pass."""
    if not probe.mine():
        return None
    compiles = getattr(args[0], "is_deepcompile_active", None)
    if callable(compiles) and compiles():
        probe.stop_timing("DeepSpeed's DeepCompile waits for other ranks in compiled code")
    probe.mark(Steps.reducing_begins, probe.clock())
    return True


def _reduction_ends(_: bool, __: Any) -> None:
    probe.mark(Steps.reducing_ends, probe.clock())


def _update_begins(args: tuple[Any, ...], _: dict[str, Any]) -> Any:
    """Marks the update: the gradients' norm, the optimizer, and the exchange of weights."""
    if not probe.adopt():
        return None
    probe.mark(Steps.update_begins, probe.clock())
    return args[0]


def _update_ends(engine: Any, _: Any) -> None:
    applied = getattr(engine, "_step_applied", True) is not False
    probe.mark(updated if applied else update_skipped, probe.clock())


def describe() -> dict[str, Any]:
    """The engine's configuration; empty if this process made no engine since it was forked."""
    return {"deepspeed": dict(_configuration)} if _STRATEGY in probe.objects.strategies else {}
