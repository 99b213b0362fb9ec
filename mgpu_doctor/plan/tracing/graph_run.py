"""Runs a real step on the CPU with TensorFlow's GPU allocator.

`TF_CPU_ALLOCATOR_USE_BFC` makes TensorFlow use it for host memory; it must be set before TensorFlow
is imported (tracing_server.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from mgpu_doctor.analysis.memory.stream import Allocated, Event, Freed, Kind, Phase, Stream

STEPS = 3
"""Number of runs. The first one allocates what later ones reuse; the largest of the others
counts."""
PARTS = 64
"""Allocations that are not itemized count as this many blocks: one large block would waste memory
in the allocator."""


def measure_peak(traced: Any, batch: Any) -> int:
    """Returns the peak bytes of the step beyond what was allocated before it."""
    given = [tf.convert_to_tensor(each) for each in tf.nest.flatten(batch)]
    most = 0
    for step in range(STEPS):
        before = int(tf.config.experimental.get_memory_info("CPU:0")["current"])
        tf.config.experimental.reset_memory_stats("CPU:0")
        traced(*given)
        if step:
            now = int(tf.config.experimental.get_memory_info("CPU:0")["peak"]) - before
            most = max(most, now)
    return most


def measure_stream(
    traced: Any,
    batch: Any,
    kinds: Sequence[tuple[Any, Kind]],
    samples: int,
    parameters: int,
) -> Stream:
    """Returns the stream of variables, the batch, and everything else that the step allocates."""
    most = measure_peak(traced, batch)
    held = [(kind, each.name, _tensor_bytes(each)) for each, kind in kinds]
    held.sort(key=lambda each: (each[0].value, each[2]))  # the same order for any batch
    held += [(Kind.BATCH, "batch", _tensor_bytes(each)) for each in tf.nest.flatten(batch)]
    events: list[Event] = [
        Allocated(number, size, kind, Phase.SETUP, name)
        for number, (kind, name, size) in enumerate(held)
    ]
    rest = range(len(held), len(held) + PARTS)
    part = -(-most // PARTS)
    events += [Allocated(n, part, Kind.ACTIVATIONS, Phase.BACKWARD, "all else") for n in rest]
    events += [Freed(number, Phase.BACKWARD) for number in rest]
    return Stream(tuple(events), (len(held),), samples, parameters)


def _tensor_bytes(tensor: Any) -> int:
    numbers = tf.TensorShape(tensor.shape).num_elements() or 0
    return int(numbers) * int(tf.as_dtype(tensor.dtype).size)
