"""The faults of one TensorFlow process and of its replicas, planted inside a graph.

A delay is a Python function that the graph calls with a number made of what must be ready before,
and whose answer is added to what must come after. It has no state in TensorFlow's eyes: what has
some runs in the order of the program, one replica after the other.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from mgpu_trainers.failure_faults import MEGABYTE, Leak, Nan
from mgpu_trainers.fault_spec import ALL
from mgpu_trainers.planting import DelayFault, Fault, Planted
from mgpu_trainers.slow_faults import Heap, Stall

FLOAT32 = 4
"""Bytes of a number."""


class PlantedInGraph(Planted):
    """The faults of one process, `replicas` of whose replicas faults name as ranks."""

    def __init__(self, planted: Iterable[Fault], rank: int, replicas: int = 1) -> None:
        mine = range(rank, rank + replicas)
        super().__init__((), rank)
        self.faults = tuple(fault for fault in planted if fault.rank == ALL or fault.rank in mine)
        self.replicas = replicas
        self._kept: list[Any] = []
        for fault in self.faults:
            if isinstance(fault, Stall) and fault.how == "gc":
                Heap.grow(fault.ms / 1000)

    def make_delay(self) -> Callable[[Any], Any] | None:
        """What adds to the time a batch takes to be made; None: nothing does."""
        slow = self.find_slow("input")
        if not slow:
            return None
        calls = 0

        def delay() -> None:
            nonlocal calls
            calls += 1
            for fault in slow:
                if fault.is_due(calls):
                    fault.spend(0.0)

        return lambda inputs: add_scalar(inputs, call_after([inputs], delay))

    def forward(self) -> None:
        """Called before a batch is computed."""
        for fault in self.faults:
            if isinstance(fault, Leak):
                self._kept.append(tf.ones([int(fault.mb * MEGABYTE) // FLOAT32]))

    def here(self) -> "Replica":
        """The faults of the replica whose graph is being built."""
        ranks = [fault.rank for fault in self.faults]
        if self.replicas > 1:
            context = tf.distribute.get_replica_context()
            ranks = [int(tf.get_static_value(context.replica_id_in_sync_group) or 0)]
        return Replica(self, [fault for fault in self.faults if fault.rank in (*ranks, ALL)])


class Replica:
    """Plants the faults of one replica; costs nothing if there are none."""

    def __init__(self, job: PlantedInGraph, planted: Sequence[Fault]) -> None:
        self._job = job
        self._nans = [fault for fault in planted if isinstance(fault, Nan)]
        self._slow = {
            phase: [
                GraphDelay(fault, self._is_due)
                for fault in planted
                if isinstance(fault, DelayFault) and fault.slow_phase == phase
            ]
            for phase in ("forward", "backward", "optimizer")
        }

    def inputs(self, inputs: Any) -> Any:
        for delay in self._slow["forward"]:
            inputs = add_scalar(inputs, call_after([inputs], delay.begin))
        return inputs

    def scores(self, scores: Any) -> Any:
        """The scores, which backward needs, so that it waits for a slow forward."""
        for delay in self._slow["forward"]:
            scores = add_scalar(scores, call_after([scores], delay.end))
        for delay in self._slow["backward"]:
            scores = add_scalar(scores, call_after([scores], delay.begin))
        return scores

    def gradients(self, gradients: list[Any]) -> list[Any]:
        dense = [gradient for gradient in gradients if isinstance(gradient, tf.Tensor)]
        for happen in (*(fault.end for fault in self._slow["backward"]), *self._poisons()):
            zero = call_after(dense, happen)
            gradients = [
                add_scalar(gradient, zero) if isinstance(gradient, tf.Tensor) else gradient
                for gradient in gradients
            ]
        return gradients

    def updated(self, loss: Any, variable: Any) -> Any:
        """The loss, after a slow optimizer; `variable`: one that the optimizer just changed."""
        for delay in self._slow["optimizer"]:
            loss = add_scalar(loss, call_after([variable], delay.end))
        return loss

    def _poisons(self) -> Iterable[Callable[[], float]]:
        for fault in self._nans:
            step = fault.step
            yield lambda step=step: float("nan") if self._job.step == step else 0.0  # type: ignore[misc]

    def _is_due(self, fault: DelayFault) -> bool:
        return self._job.training and fault.is_due(self._job.step)


def call_after(ready: Iterable[Any], happen: Callable[[], float | None]) -> Any:
    """A scalar that `happen` returns, or 0, computed once all tensors of `ready` are there."""

    def called(_: Any) -> Any:
        return np.float32(happen() or 0)

    firsts = [tf.cast(tf.reshape(tensor, [-1])[0], tf.float32) for tensor in ready]
    result = tf.numpy_function(called, [tf.stop_gradient(tf.stack(firsts))], tf.float32, False)
    result.set_shape([])
    return result


def add_scalar(value: Any, scalar: Any) -> Any:
    """`value` plus `scalar` in its type: it then waits for what computes the scalar."""
    return value + tf.cast(scalar, value.dtype)


class GraphDelay:
    """Delays the second of two places in the graph of one replica."""

    def __init__(self, fault: DelayFault, is_due: Callable[[DelayFault], bool]) -> None:
        self.fault = fault
        self.is_due = is_due
        self.began = 0.0

    def begin(self) -> None:
        self.began = time.perf_counter()

    def end(self) -> None:
        if self.is_due(self.fault):
            self.fault.spend(time.perf_counter() - self.began)
