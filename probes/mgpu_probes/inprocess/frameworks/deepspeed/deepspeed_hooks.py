"""DeepSpeed: what its engine does around forward, backward and the optimizer.

On a GPU its ZeRO optimizers reduce gradients and gather weights in streams of their own. The stream
that computes waits for these (`wait_stream`: each bucket of stages 1 and 2, each module of stage
3), or the host does (`synchronize`: at the end of the backward pass, and where stage 3 has too many
reductions under way). The hooks of the streams see both.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ...probe_context import ProbeContext
from ...step_engine import Steps
from ...step_marks import update_skipped, updated
from ..torch.ddp import forward_begins, forward_ends
from ..torch.parallel_strategies import uses
from ..torch.torch_support import wrap

probe: ProbeContext

_WORD = "deepspeed"
_STAGES = {1: "zero1", 2: "zero2", 3: "zero3"}
_configuration: dict[str, Any] = {}


def patch(engine: ModuleType) -> None:
    """Wraps the engine: its own methods between the user's call and torch's hooks (private, and
    left alone where they are called otherwise)."""
    owner = engine.DeepSpeedEngine
    wrap(owner, "__init__", _making, _made)
    wrap(owner, "forward", forward_begins, forward_ends)
    wrap(owner, "_backward_epilogue", _reduces, _reduced)
    wrap(owner, "_take_model_step", _updates, _updated)


def _making(args: tuple[Any, ...], _: dict[str, Any]) -> Any:
    return args[0] if probe.on else None


def _made(engine: Any, _: Any) -> None:
    uses(_WORD)
    if type(engine).__name__ == "PipelineEngine":
        uses("pipeline")
    stage = _setting(engine, "zero_optimization_stage")
    if stage in _STAGES:
        uses(_STAGES[stage])
    _configuration.update(
        zero_stage=stage,
        accumulation=_setting(engine, "gradient_accumulation_steps"),
        bucket_elements=_setting(engine, "zero_reduce_bucket_size"),
    )


def _setting(engine: Any, setting: str) -> int | None:
    """What a method of the engine's says of its configuration; None: no number, or no such one."""
    method = getattr(engine, setting, None)
    try:
        value = method() if callable(method) else None
    except Exception:  # an engine that was not made to its end
        return None
    return int(value) if isinstance(value, int) else None


def _reduces(args: tuple[Any, ...], _: dict[str, Any]) -> bool | None:
    """Gradients are gathered into buckets and averaged: the end of the backward pass."""
    if not probe.mine():
        return None
    compiles = getattr(args[0], "is_deepcompile_active", None)
    if callable(compiles) and compiles():
        probe.stop_timing("DeepSpeed's DeepCompile waits for other ranks in compiled code")
    probe.mark(Steps.reducing_begins, probe.clock())
    return True


def _reduced(_: bool, __: Any) -> None:
    probe.mark(Steps.reducing_ends, probe.clock())


def _updates(args: tuple[Any, ...], _: dict[str, Any]) -> Any:
    """The update: gradients' norm, the optimizer, and the weights that ranks send each other."""
    if not probe.adopt():
        return None
    probe.mark(Steps.update_begins, probe.clock())
    return args[0]


def _updated(engine: Any, _: Any) -> None:
    applied = getattr(engine, "_step_applied", True) is not False
    probe.mark(updated if applied else update_skipped, probe.clock())


def describe() -> dict[str, Any]:
    """The configuration of the engine, where this process has made one (its parent may have)."""
    return {"deepspeed": dict(_configuration)} if _WORD in probe.objects.strategies else {}
