"""The best method that can trace a step, and what is reported if a better one failed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from mgpu_doctor.analysis.memory.allocator_replay import replay
from mgpu_doctor.analysis.memory.device_memory import Gpu
from mgpu_doctor.analysis.memory.memory_plan import Checkpointing, Optimizer, Plan, Settings
from mgpu_doctor.plan.planned import PlanRequest, make_plan
from mgpu_doctor.plan.step_tracer import CannotPlanError, Method, StepTracer, estimate_states
from mgpu_doctor.plan.subject import Subject
from tests.support.in_process_tracing import trace_here

pytestmark = pytest.mark.slow

WIDTH = 64
WANTED = Settings(32)


def followable() -> Any:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
    return (
        model,
        lambda samples: torch.randn(samples, WIDTH),
        lambda model, batch: model(batch).sum(),
    )


def branching() -> Any:
    """Whose branches end alike."""
    model, batch, loss = followable()

    def branch(model: nn.Module, given: Any) -> Any:
        made = loss(model, given)
        return made if made > 0 else made.view(())

    return model, batch, branch


def failing() -> Any:
    def fail(*_: Any) -> Any:
        raise RuntimeError("a kernel of the GPU is missing\nand more")

    return *followable()[:2], fail


def broken() -> Any:
    raise ValueError("no such config: base.yaml")


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    trace_here(monkeypatch, good=followable, branching=branching, failing=failing, broken=broken)


def _follow(target: str, *more: Settings) -> Any:
    with StepTracer(target, 60, lambda _: None) as follower:
        followed = follower.trace(WANTED, replace(WANTED, batch=16))
        return follower.trace_more(followed, more)


def test_what_can_be_traced_is_with_what_would_help() -> None:
    sgd = replace(WANTED, optimizer=Optimizer.SGD)
    full = replace(WANTED, checkpointing=Checkpointing.FULL)  # nothing is repeated: not known
    followed = _follow("good", sgd, full)
    assert (followed.method, followed.reasons) == (Method.FAKE, ())
    assert set(followed.traces.streams) == {WANTED, replace(WANTED, batch=16), sgd}
    assert followed.traces.flops[WANTED] == 2 * followed.traces.flops[replace(WANTED, batch=16)] > 0


def test_what_branches_on_a_tensor_is_run_small_and_known_at_any_batch() -> None:
    followed = _follow("branching")
    assert followed.method is Method.REAL
    assert "branches on a tensor's value" in followed.reasons[0]
    findings = followed.traces.find(WANTED)
    traced = _follow("good").traces.find(WANTED)
    assert replay(findings.stream).peak_allocated == replay(traced.stream).peak_allocated


def test_of_what_cannot_run_the_states_are_known() -> None:
    followed = _follow("failing")
    assert followed.method is Method.FORMULA
    assert followed.parameters == WIDTH * WIDTH + 2 * WIDTH + 1
    assert [reason.count("a kernel of the GPU is missing") for reason in followed.reasons] == [1, 1]
    assert "and more" not in "".join(followed.reasons)


def test_adam_of_a_billion_parameters_needs_16_bytes_each() -> None:
    assert replay(estimate_states(10**9, WANTED)).peak_allocated == 16 * 10**9
    assert replay(
        estimate_states(10**9, replace(WANTED, optimizer=Optimizer.SGD))
    ).peak_allocated == (8 * 10**9)


@pytest.mark.parametrize(("fixes", "batches"), [(False, {32}), (True, {32, 16})])
def test_another_batch_is_traced_only_where_somebody_asks_how_it_grows(
    fixes: bool, batches: set[int]
) -> None:
    planned = make_plan(
        PlanRequest(Subject("mine", "good"), Plan(WANTED), None, 60, fixes), lambda _: None
    )
    assert {settings.batch for settings in planned.followed.traces.streams} == batches
    assert planned.prediction.basis == "traced"


def test_what_is_no_model_cannot_be_planned() -> None:
    with pytest.raises(CannotPlanError, match="there is no file"):
        _follow("nowhere.py")


def test_a_function_that_fails_by_itself_is_reported_once() -> None:
    with pytest.raises(CannotPlanError) as caught:
        _follow("broken")
    told = "the function or the step fails by itself: ValueError: no such config: base.yaml."
    assert str(caught.value) == told


@pytest.mark.parametrize(
    ("target", "capacity", "fits"),
    [("failing", 1 << 40, None), ("failing", 1 << 20, False), ("good", 1 << 40, True)],
)
def test_a_lower_bound_can_only_say_no(target: str, capacity: int, fits: bool | None) -> None:
    device = Gpu("mine", capacity, "as given")
    asked = PlanRequest(Subject("mine", target), Plan(WANTED), device, 60)
    planned = make_plan(asked, lambda _: None)
    assert planned.fits is fits
    assert planned.bound == (target == "failing")
    assert (planned.largest is None) == planned.bound
