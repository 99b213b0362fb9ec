"""A real step on the CPU, under the allocator that TensorFlow has for GPUs.

`TF_CPU_ALLOCATOR_USE_BFC` puts it in charge of the host's memory; it must be set before TensorFlow
is loaded (tracing_server.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from mgpu_doctor.analysis.memory.stream import Allocated, Event, Freed, Kind, Phase, Stream

STEPS = 3
"""The first finds nothing in its place; of the others the largest counts."""
PARTS = 64
"""What is not told apart is so many blocks: the allocator would be wasteful with one large one."""


def measure_peak(traced: Any, batch: Any) -> int:
    """Bytes that the step takes beyond what is there before it."""
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
    """Variables, the batch, and all that the step takes beside them."""
    most = measure_peak(traced, batch)
    held = [(kind, each.name, _tensor_bytes(each)) for each, kind in kinds]
    held.sort(key=lambda each: (each[0].value, each[2]))  # alike for any batch
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
