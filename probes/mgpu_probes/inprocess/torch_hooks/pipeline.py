"""torch.distributed.pipelining: the stages of this rank, and in how many parts a batch passes."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from .. import births
from ..rank import probe
from .common import wrap
from .parallel import uses

_MOST = 64
"""Stages that are told."""
_held: set[int] = set()
_told: dict[str, Any] = {}


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


def _making(args: tuple[Any, ...], _: dict[str, Any]) -> Any:
    return args[0] if probe.on else None


def _stage_made(stage: Any, _: Any) -> None:
    uses("pipeline")
    number = getattr(stage, "stage_index", None)
    if isinstance(number, int) and len(_held) < _MOST:
        _held.add(number)
    _told["stages"] = getattr(stage, "num_stages", None)


def _schedule_made(schedule: Any, _: Any) -> None:
    """The first one: another may be for evaluation."""
    _told.setdefault("schedule", type(schedule).__name__)
    _told.setdefault("micro_batches", getattr(schedule, "_n_microbatches", None))


def _pipeline() -> dict[str, Any]:
    return {"pipeline": {**_told, "held": sorted(_held)}} if _held else {}


def _start_anew() -> None:
    """In a new box: a forked child makes its own."""
    _held.clear()
    _told.clear()


births.parts.append(_pipeline)
probe.on_open.append(_start_anew)
