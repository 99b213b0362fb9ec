"""The same step with another batch: what grows with it, and what does not.

Held against traces of GPT-2-small and ResNet-50 at that batch (fp32, bf16, checkpointed): the same
to the byte, from two traces as from one. Accumulation by formula: allocated -0.3 and +0.1 %,
reserved +2.5 and -0.5 %.
"""

from __future__ import annotations

from mgpu_doctor.analysis.memory.edits import (
    gradients,
    in_forward,
    resized,
    with_in_steps,
    with_short_gradients,
)
from mgpu_doctor.analysis.memory.stream import Event, Kind, Phase, Stream, Taken

GROWING = {Kind.ACTIVATIONS, Kind.BATCH, Kind.TEMPORARY}
AT_WORK = {Phase.FORWARD, Phase.BACKWARD}


def interpolated(first: Stream, second: Stream, batch: int) -> Stream | None:
    """Every block on the straight line through its sizes in two traces that differ in the batch
    alone. None: the two did not take and free the same blocks."""
    apart = second.samples - first.samples
    if not apart or len(first.events) != len(second.events):
        return None
    sizes: dict[int, int] = {}
    for one, other in zip(first.events, second.events, strict=True):
        if not _same(one, other):
            return None
        if isinstance(one, Taken) and isinstance(other, Taken):
            grown = (other.size - one.size) * (batch - first.samples)
            sizes[one.block] = max(0, one.size + grown // apart)
    return _of(resized(first, lambda taken: sizes[taken.block]), batch)


def rescaled(stream: Stream, batch: int) -> Stream:
    """By one trace alone: activations, batches and temporaries of forward and backward grow with
    the batch, unless they are as large as a weight or as its half (a cast)."""
    weights = {
        size
        for event in stream.events
        if isinstance(event, Taken) and event.kind is Kind.WEIGHTS
        for size in (event.size, event.size // 2)
    }

    def size(taken: Taken) -> int:
        if taken.kind not in GROWING or taken.size in weights:
            return taken.size
        if taken.kind is not Kind.BATCH and taken.phase not in AT_WORK:
            return taken.size
        return taken.size * batch // max(1, stream.samples)

    return _of(resized(stream, size), batch)


def accumulated(stream: Stream) -> Stream:
    """A step of one micro-batch as one of several: the gradients of the ones before are held
    throughout, and those of the present one are added to them as they come."""
    held = [("accumulated gradients", Kind.GRADIENTS, size) for size in gradients(stream)]
    return with_in_steps(with_short_gradients(stream), held, begin=in_forward, end=Phase.OPTIMIZER)


def _same(one: Event, other: Event) -> bool:
    if isinstance(one, Taken) and isinstance(other, Taken):
        return (one.block, one.kind, one.phase) == (other.block, other.kind, other.phase)
    return type(one) is type(other) and one.block == other.block


def _of(stream: Stream, batch: int) -> Stream:
    return Stream(stream.events, stream.steps, batch, stream.parameters)
