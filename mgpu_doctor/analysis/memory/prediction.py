"""The memory of a planned job: the traced step, changed as planned, replayed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mgpu_doctor.analysis.memory.allocator import GRANULE
from mgpu_doctor.analysis.memory.allocator_replay import (
    Composition,
    find_composition,
    minimum_bytes,
    replay,
    smallest_capacity,
)
from mgpu_doctor.analysis.memory.device_memory import Constant, Gpu, list_constants
from mgpu_doctor.analysis.memory.distributed import apply_strategy
from mgpu_doctor.analysis.memory.memory_plan import Framework, Plan, Precision
from mgpu_doctor.analysis.memory.stream import Stream
from mgpu_doctor.analysis.memory.stream_edits import (
    chunk_loss,
    fuse_optimizer,
    offload_optimizer,
    quantize_states,
)
from mgpu_doctor.analysis.memory.traced_streams import Traces

MARGIN = 0.03
"""Share by which the allocator's numbers may be off, until calibrated on the user's GPU: a bound
for the errors seen (0.4 % in fp32, up to 2.2 % in bf16)."""
UNVALIDATED = 0.1
"""The same for expandable segments, whose simulation was never compared with a recording."""
LIVENESS = 0.15
"""The same for TensorFlow, which rewrites the graph and orders it otherwise by device:
a bound for the errors seen on CPUs, GPT and ResNet-50, 10 % too little to 1 % too much
(benchmarks/tf_plan.py)."""
STEPS_OF_SEARCH = 256
"""The smallest capacity is found to 1/256 of itself."""
LARGEST_BATCH = 1 << 20


@dataclass(frozen=True, slots=True)
class Prediction:
    """Bytes of one rank. `allocated`: in use at the peak, what nothing can go below; `capacity`:
    the least that the allocator survives with; `reserved`: what it takes if it may."""

    plan: Plan
    allocated: int
    capacity: int
    reserved: int
    composition: Composition
    outside: tuple[Constant, ...]
    """Bytes on the device besides the allocator's memory."""
    basis: str
    margin: float

    @property
    def needed(self) -> int:
        """The smallest device that will do, constants included; the best estimate."""
        return self.capacity + sum(constant.size for constant in self.outside)

    @property
    def needed_at_most(self) -> int:
        """The same with every margin against us."""
        spread = sum(constant.size + constant.margin for constant in self.outside)
        return int(self.capacity * (1 + self.margin)) + spread

    def fits(self, device: Gpu) -> bool:
        """Margins included."""
        return self.needed_at_most <= device.capacity


def arrange_step(stream: Stream, plan: Plan) -> Stream:
    """The step of one rank as planned."""
    if plan.chunked_loss:
        stream = chunk_loss(stream, short=plan.settings.precision is Precision.BF16)
    if plan.offload_optimizer:
        stream = offload_optimizer(stream)
    elif plan.eight_bit_states:
        stream = quantize_states(stream)
    elif plan.fused_optimizer:
        stream = fuse_optimizer(stream)
    return apply_strategy(stream, plan)


def predict(plan: Plan, traces: Traces, device: Gpu | None = None) -> Prediction | None:
    """The prediction; None: no similar plan was traced."""
    traced_step = None if plan.xla else traces.find(plan.settings)
    if traced_step is None:
        return None
    stream = arrange_step(traced_step.stream, plan)
    expandable, framework = plan.expandable, plan.framework
    free = replay(stream, expandable=expandable, framework=framework)
    granule = max(GRANULE, free.peak_allocated // STEPS_OF_SEARCH)
    return Prediction(
        plan,
        free.peak_allocated,
        smallest_capacity(stream, expandable=expandable, granule=granule, framework=framework),
        free.peak_reserved,
        find_composition(stream, free),
        list_constants(plan, device),
        traced_step.basis,
        _margin(plan),
    )


def may_fit(plan: Plan, traces: Traces, device: Gpu) -> bool:
    """Whether it is worth predicting: quick, and false only for what cannot fit."""
    traced_step = None if plan.xla else traces.find(plan.settings)
    if traced_step is None:
        return False
    spread = sum(constant.size + constant.margin for constant in list_constants(plan, device))
    return (
        int(minimum_bytes(arrange_step(traced_step.stream, plan)) * (1 + _margin(plan))) + spread
        <= device.capacity
    )


def largest_batch(plan: Plan, traces: Traces, device: Gpu) -> int | None:
    """Samples of a micro-batch that fit, margins included; 0: not even one; None: nothing like it
    was traced."""
    if traces.find(plan.settings) is None:
        return None

    def at(batch: int) -> Plan:
        return replace(plan, settings=replace(plan.settings, batch=batch))

    fits, fails = 0, 1
    while fails < LARGEST_BATCH and may_fit(at(fails), traces, device):
        fits, fails = fails, fails * 2
    while fails - fits > 1:
        middle = (fits + fails) // 2
        fits, fails = (middle, fails) if may_fit(at(middle), traces, device) else (fits, middle)
    while fits:
        predicted = predict(at(fits), traces, device)
        if predicted is not None and predicted.fits(device):
            return fits
        fits -= max(1, fits // 64)
    return 0


def _margin(plan: Plan) -> float:
    if plan.framework is Framework.TENSORFLOW:
        return LIVENESS
    return UNVALIDATED if plan.expandable else MARGIN
