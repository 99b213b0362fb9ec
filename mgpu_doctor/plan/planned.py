"""Makes the plan for a user's model: whether it fits, the largest batch, the fixes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from mgpu_doctor.analysis.memory.device_memory import OTHER_ORDER, SCRATCH, Gpu
from mgpu_doctor.analysis.memory.fix_search import Advice, advise
from mgpu_doctor.analysis.memory.fixes import wanted_traces
from mgpu_doctor.analysis.memory.memory_plan import Framework, Plan, Strategy
from mgpu_doctor.analysis.memory.prediction import Prediction, largest_batch, predict
from mgpu_doctor.plan.step_tracer import CannotPlanError, Method, StepTracer, TracedSteps
from mgpu_doctor.plan.subject import Subject


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What to plan. `limit`: seconds that one trace may take. `fixes`: whether to search for fixes
    even if it fits."""

    subject: Subject
    plan: Plan
    device: Gpu | None
    limit: float
    fixes: bool = False


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan. `largest`: samples of the largest micro-batch that fits; None without a device or if
    unknown. `advice`: None if no fixes were searched for. `notes`: what the numbers do not
    include."""

    subject: Subject
    device: Gpu | None
    prediction: Prediction
    followed: TracedSteps
    largest: int | None
    advice: Advice | None
    notes: tuple[str, ...]

    @property
    def fits(self) -> bool | None:
        """Whether it fits; None if no device was named, or if only a lower bound is known and it
        fits."""
        if self.device is None:
            return None
        if self.bound:
            return None if self.prediction.needed <= self.device.capacity else False
        return self.prediction.fits(self.device)

    @property
    def bound(self) -> bool:
        """Whether the numbers are a lower bound."""
        return self.followed.method is Method.FORMULA


def make_plan(asked: PlanRequest, tell: Callable[[str], None]) -> Planned:
    """Returns the plan. Raises CannotPlanError."""
    wanted, device = asked.plan, asked.device
    with StepTracer(asked.subject.target, asked.limit, tell) as follower:
        other = wanted_traces(wanted)[0] if device is not None or asked.fixes else None
        followed = follower.trace(wanted.settings, other)
        wanted = plan_for(followed.framework, wanted)
        prediction = predict(wanted, followed.traces, device)
        if prediction is None:
            raise CannotPlanError(
                "the step was traced, but says nothing about the requested batch."
            )
        planned = Planned(asked.subject, device, prediction, followed, None, None, _notes(followed))
        if planned.bound:
            return planned
        fixes = asked.fixes or planned.fits is False
        if fixes:
            followed = follower.trace_more(followed, wanted_traces(wanted)[1:])
    if device is not None:
        tell("looking for the largest batch that fits")
        planned = replace(planned, largest=largest_batch(wanted, followed.traces, device))
    if fixes:
        tell("looking for what would help")
        planned = replace(planned, advice=advise(wanted, followed.traces, device))
    return planned


def plan_for(framework: Framework, plan: Plan) -> Plan:
    """Returns the parallel plan as this framework implements it. Raises CannotPlanError if it
    cannot."""
    tensorflow = framework is Framework.TENSORFLOW
    strategy = plan.strategy
    if tensorflow and strategy is Strategy.DDP:
        strategy = Strategy.MIRRORED
    if strategy is not Strategy.SINGLE and tensorflow is not (strategy is Strategy.MIRRORED):
        theirs = "single and mirrored" if tensorflow else "single, ddp, zero1 and fsdp"
        raise CannotPlanError(
            f"--strategy {strategy.value} is not available for {framework.value}: {theirs} can be "
            "planned."
        )
    return replace(plan, framework=framework, strategy=strategy)


def _notes(followed: TracedSteps) -> tuple[str, ...]:
    notes = [SCRATCH if followed.framework is Framework.TORCH else OTHER_ORDER, *followed.notes]
    if followed.values_read:
        notes.append("numbers that the step reads from tensors (.item()) were taken to be 1")
    if followed.method is Method.FORMULA:
        notes.append("activations are not included: the numbers are a lower bound")
    return tuple(notes)
