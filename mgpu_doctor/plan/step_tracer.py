"""Traces the step by the best method that works: fake tensors, a small real run, or a formula.

For TensorFlow, the first method is its graph of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import Enum
from queue import SimpleQueue

from mgpu_doctor.analysis.memory.memory_plan import Framework, Optimizer, Settings
from mgpu_doctor.analysis.memory.stream import Allocated, Event, Freed, Kind, Phase, Stream
from mgpu_doctor.analysis.memory.stream_edits import offload_optimizer
from mgpu_doctor.analysis.memory.traced_streams import Traces
from mgpu_doctor.plan.fork_server import ForkServer, Worker
from mgpu_doctor.plan.tracing_protocol import Answer, Refusal

SMALL = (2, 4)
"""Batches of a real run. Not 1: with a single sample, operators use special cases."""
SIDE_BY_SIDE = 3
"""Traces run in parallel: enough for those that fixes need, after the plan's own and that of a
second batch."""
_STATES = {Optimizer.SGD: 0, Optimizer.ADAM: 2, Optimizer.ADAMW: 2}
_FLOAT = 4


class Method(Enum):
    FAKE = "traced with fake tensors"
    GRAPH = "from TensorFlow's graph of the step: each tensor's first and last use"
    REAL = "a small real run on the CPU"
    FORMULA = "from the number of parameters only"


_TRACED = {Framework.TORCH: Method.FAKE, Framework.TENSORFLOW: Method.GRAPH}
_BEST = {Framework.TORCH: "fake tensors", Framework.TENSORFLOW: "its graph"}


class CannotPlanError(Exception):
    """No plan is possible; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class TracedSteps:
    """Traced steps. `reasons`: why no better method worked. `parameters`: their number.
    `values_read`: numbers that the step read from tensors, which were invented. `notes`: caveats
    found while tracing."""

    traces: Traces
    method: Method
    reasons: tuple[str, ...]
    parameters: int
    values_read: int = 0
    framework: Framework = Framework.TORCH
    notes: tuple[str, ...] = ()


class StepTracer:
    """Traces in parallel processes, children of one that has loaded torch.

    `limit`: seconds that one trace may take.
    """

    def __init__(self, target: str, limit: float, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._server = ForkServer(target)
        self._workers = tuple(Worker(self._server, limit) for _ in range(SIDE_BY_SIDE))
        self._idle: SimpleQueue[Worker] = SimpleQueue()
        for worker in self._workers:
            self._idle.put(worker)
        self._pool = ThreadPoolExecutor(len(self._workers))

    def __enter__(self) -> StepTracer:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            worker.close()  # this ends what is still running
        self._server.close()

    def trace(self, settings: Settings, other: Settings | None) -> TracedSteps:
        """Returns the traced steps. `other`: a second batch that shows how the step grows, if
        needed. Raises CannotPlanError."""
        self._tell("tracing the step")
        asked = [settings] if other is None else [settings, other]
        answers = dict(zip(asked, self._pool.map(self._ask, asked), strict=True))
        own = answers[settings]
        if isinstance(own, Answer):
            return _traced_steps(_add_answers(answers, Traces({})), _TRACED[own.framework], (), own)
        if own.target:
            raise CannotPlanError(own.why)
        reasons = [f"{_BEST[own.framework]} could not trace the step: {own.why.rstrip('.')}"]
        self._tell("running two small steps on the CPU")
        small = self._run_small(settings, own.framework)
        if isinstance(small, tuple):
            return _traced_steps(small[0], Method.REAL, tuple(reasons), small[1])
        reasons.append(f"it could not be run on the CPU: {small.why.rstrip('.')}")
        parameters = own.parameters or small.parameters or 0
        if small.target or not parameters:
            if small.why == own.why and not small.target:
                reasons = [f"the function or the step fails by itself: {own.why.rstrip('.')}"]
            raise CannotPlanError(small.why if small.target else f"{'; '.join(reasons)}.")
        traces = Traces({settings: estimate_states(parameters, settings)})
        way = Method.FORMULA
        return TracedSteps(traces, way, tuple(reasons), parameters, framework=own.framework)

    def trace_more(self, followed: TracedSteps, wanted: Iterable[Settings]) -> TracedSteps:
        """Traces the step with further settings, as far as they can be traced."""
        if followed.method not in _TRACED.values():
            return followed
        self._tell("tracing what would help")
        known = followed.traces
        derived = {
            settings: offload_optimizer(
                traced_step.stream
            )  # what SGD takes; tests compare it with traces
            for settings in wanted
            if followed.method is Method.FAKE
            and settings.optimizer is Optimizer.SGD
            and (traced_step := known.find(replace(settings, optimizer=Optimizer.ADAMW)))
        }
        asked = [each for each in wanted if each not in derived and each not in known.streams]
        answers = dict(zip(asked, self._pool.map(self._ask, asked), strict=True))
        traced = _add_answers(answers, known)
        return replace(followed, traces=replace(traced, streams={**traced.streams, **derived}))

    def _run_small(
        self, settings: Settings, framework: Framework
    ) -> tuple[Traces, Answer] | Refusal:
        answers: dict[Settings, Answer] = {}
        for batch in _small_batches(settings.batch, framework):
            asked = replace(settings, batch=batch)
            answer = self._ask(asked, real=True)
            if isinstance(answer, Refusal):
                return answer
            answers[asked] = answer
        streams = {asked: answer.stream for asked, answer in answers.items()}
        return Traces(streams), next(iter(answers.values()))

    def _ask(self, settings: Settings, real: bool = False) -> Answer | Refusal:
        worker = self._idle.get()
        try:
            return worker.trace(settings, real=real)
        finally:
            self._idle.put(worker)


def _small_batches(asked: int, framework: Framework) -> tuple[int, int]:
    """Returns the small batches to run. TensorFlow reports only a step's peak, which may be
    elsewhere in a small batch, so these are closer to the requested one."""
    if framework is Framework.TORCH:
        return SMALL
    return max(SMALL[0], asked // 4), max(SMALL[1], asked // 2)


def _traced_steps(
    traces: Traces, way: Method, reasons: tuple[str, ...], answer: Answer
) -> TracedSteps:
    parameters, framework = answer.stream.parameters, answer.framework
    return TracedSteps(
        traces, way, reasons, parameters, answer.values_read, framework, answer.notes
    )


def _add_answers(answers: Mapping[Settings, Answer | Refusal], known: Traces) -> Traces:
    good = {each: answer for each, answer in answers.items() if isinstance(answer, Answer)}
    streams = {each: answer.stream for each, answer in good.items()}
    flops = {each: answer.flops for each, answer in good.items()}
    return Traces({**known.streams, **streams}, {**known.flops, **flops})


def estimate_states(parameters: int, settings: Settings) -> Stream:
    """Returns an estimated step from the number of parameters only, in float32: weights, gradients
    and optimizer states. Activations are not included."""
    size = parameters * _FLOAT
    weights, gradients, *states = range(2 + _STATES[settings.optimizer])
    events: list[Event] = [Allocated(weights, size, Kind.WEIGHTS, Phase.SETUP)]
    events.append(Allocated(gradients, size, Kind.GRADIENTS, Phase.BACKWARD))
    events += [Allocated(state, size, Kind.OPTIMIZER, Phase.OPTIMIZER) for state in states]
    events.append(Freed(gradients, Phase.OPTIMIZER))
    return Stream(tuple(events), (1,), settings.batch, parameters)
