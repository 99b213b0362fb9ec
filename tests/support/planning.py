"""Tracing without a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mgpu_doctor.analysis.memory.settings import Framework, Settings
from mgpu_doctor.plan import following
from mgpu_doctor.plan.tracing import step
from mgpu_doctor.plan.tracing.pointing import StepError, TargetError, find, framework
from mgpu_doctor.plan.wire import Answer, Refusal


class InThisProcess:
    """In the place of a `Worker`."""

    functions: dict[str, Callable[[], Any]]
    """By the names under which they are asked for; others are looked for as ever."""

    def __init__(self, nursery: str, limit: float) -> None:
        self.target, self.limit = nursery, limit

    def trace(self, settings: Settings, *, real: bool = False) -> Answer | Refusal:
        try:
            function = self.functions.get(self.target) or find(self.target)
            return _tracer(framework(self.target))(function, settings, real=real)
        except TargetError as error:
            return Refusal(str(error), target=True)
        except StepError as error:
            return Refusal(str(error), target=False, parameters=error.parameters)

    def close(self) -> None: ...


class _NoProcess(str):
    """In the place of a `Nursery`: the target alone."""

    __slots__ = ()

    def close(self) -> None: ...


def _tracer(about: Framework) -> Callable[..., Answer]:
    if about is Framework.TORCH:
        return step.answer
    from mgpu_doctor.plan.graphs import step as graphs  # TensorFlow is loaded where it is needed

    return graphs.trace


def trace_here(monkeypatch: pytest.MonkeyPatch, **functions: Callable[[], Any]) -> None:
    """From now on, one trace after the other."""
    monkeypatch.setattr(InThisProcess, "functions", functions, raising=False)
    monkeypatch.setattr(following, "Worker", InThisProcess)
    monkeypatch.setattr(following, "Nursery", _NoProcess)
    monkeypatch.setattr("concurrent.futures.ThreadPoolExecutor.map", lambda _, *some: map(*some))
