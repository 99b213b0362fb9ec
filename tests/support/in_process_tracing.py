"""Has `mgpu-doctor plan` trace steps in the test's own process, without worker processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mgpu_doctor.analysis.memory.memory_plan import Framework, Settings
from mgpu_doctor.plan import step_tracer
from mgpu_doctor.plan.tracing.user_function import (
    StepError,
    TargetError,
    detect_framework,
    find_function,
)
from mgpu_doctor.plan.tracing_protocol import Answer, Refusal


class InThisProcess:
    """Replaces a `Worker`."""

    functions: dict[str, Callable[[], Any]]
    """Functions by their target names; other targets are found as usual."""

    def __init__(self, target: str, limit: float) -> None:
        self.target, self.limit = target, limit

    def trace(self, settings: Settings, *, real: bool = False) -> Answer | Refusal:
        try:
            function = self.functions.get(self.target) or find_function(self.target)
            return _tracer(detect_framework(self.target))(function, settings, real=real)
        except TargetError as error:
            return Refusal(str(error), target=True)
        except StepError as error:
            return Refusal(str(error), target=False, parameters=error.parameters)

    def close(self) -> None: ...


class _NoProcess(str):
    """Replaces a `ForkServer`: just the target's name."""

    __slots__ = ()

    def close(self) -> None: ...


def _tracer(about: Framework) -> Callable[..., Answer]:
    if about is Framework.TORCH:  # a framework is loaded only by tests that trace
        from mgpu_doctor.plan.tracing import torch_step

        return torch_step.answer
    from mgpu_doctor.plan.tracing import graph_step

    return graph_step.trace


def trace_here(monkeypatch: pytest.MonkeyPatch, **functions: Callable[[], Any]) -> None:
    """Has the step tracer trace `functions` in this process, one after the other."""
    monkeypatch.setattr(InThisProcess, "functions", functions, raising=False)
    monkeypatch.setattr(step_tracer, "Worker", InThisProcess)
    monkeypatch.setattr(step_tracer, "ForkServer", _NoProcess)
    monkeypatch.setattr("concurrent.futures.ThreadPoolExecutor.map", lambda _, *some: map(*some))
