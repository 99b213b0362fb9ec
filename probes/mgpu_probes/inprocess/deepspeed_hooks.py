"""DeepSpeed: what its engine does around forward, backward and the optimizer."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from . import process_metadata
from .probe_context import ProbeContext, probe
from .step_engine import Steps
from .torch_hooks.ddp import forward_begins, forward_ends
from .torch_hooks.parallel_strategies import uses
from .torch_hooks.torch_support import wrap

_WORD = "deepspeed"
_STAGES = {1: "zero1", 2: "zero2", 3: "zero3"}
_told: dict[str, Any] = {}


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
    stage = _asked(engine, "zero_optimization_stage")
    if stage in _STAGES:
        uses(_STAGES[stage])
    _told.update(
        zero_stage=stage,
        accumulation=_asked(engine, "gradient_accumulation_steps"),
        bucket_elements=_asked(engine, "zero_reduce_bucket_size"),
    )


def _asked(engine: Any, setting: str) -> int | None:
    """What a method of the engine's says of its configuration; None: no number, or no such one."""
    method = getattr(engine, setting, None)
    try:
        value = method() if callable(method) else None
    except Exception:  # an engine that was not made to its end
        return None
    return int(value) if isinstance(value, int) else None


def _reduces(_: tuple[Any, ...], __: dict[str, Any]) -> bool | None:
    """Gradients are gathered into buckets and averaged: the end of the backward pass."""
    if not probe.mine():
        return None
    probe.stride.mark(Steps.reducing_begins, probe.clock())
    return True


def _reduced(_: bool, __: Any) -> None:
    probe.stride.mark(Steps.reducing_ends, probe.clock())


def _updates(args: tuple[Any, ...], _: dict[str, Any]) -> Any:
    """The update: gradients' norm, the optimizer, and the weights that ranks send each other."""
    if not probe.adopt():
        return None
    probe.stride.mark(Steps.update_begins, probe.clock())
    return args[0]


def _updated(engine: Any, _: Any) -> None:
    applied = getattr(engine, "_step_applied", True) is not False
    probe.stride.mark(_stepped if applied else _skipped, probe.clock())


def _stepped(steps: Steps, now: int) -> None:
    steps.update_ends(now, 1)


def _skipped(steps: Steps, now: int) -> None:
    steps.update_ends(now, 1, scaler=True)


def _engine() -> dict[str, Any]:
    # A forked child's parent may have made one.
    return {"deepspeed": dict(_told)} if _WORD in process_metadata.strategies else {}


def attach(context: ProbeContext) -> None:
    """Adds the configuration of the engine to the process metadata."""
    context.add_metadata(_engine)
