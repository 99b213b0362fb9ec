"""The faults of one process, and of its replicas, in a job of TensorFlow."""

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from mgpu_trainers import faults
from mgpu_trainers.fault import Fault
from mgpu_trainers.heap import Heap
from mgpu_trainers.mishaps import Leak, Nan
from mgpu_trainers.slowness import Late, Slow, SlowLoader, Stall
from mgpu_trainers.specs import ALL
from mgpu_trainers.tensorflow.common.delays import Stretch, after, plus


class Planted(faults.Planted):
    """`replicas`: how many of the ranks that faults name are replicas of this process."""

    def __init__(self, planted: Iterable[Fault], rank: int, replicas: int = 1) -> None:
        mine = range(rank, rank + replicas)
        super().__init__((), rank)
        self.faults = tuple(fault for fault in planted if fault.rank == ALL or fault.rank in mine)
        self.replicas = replicas
        self._kept: list[Any] = []
        for fault in self.faults:
            if isinstance(fault, Stall) and fault.how == "gc":
                Heap.grow(fault.ms / 1000)

    def late(self) -> Callable[[Any], Any] | None:
        """Adds to the time that a batch takes to be made; None: nothing does."""
        slow = _slow(self.faults, "input")
        if not slow:
            return None
        made = 0

        def delay() -> None:
            nonlocal made
            made += 1
            for fault in slow:
                if fault.due(made):
                    fault.spend(0.0)

        return lambda inputs: plus(inputs, after([inputs], delay))

    def forward(self) -> None:
        """A batch is about to be computed."""
        for fault in self.faults:
            if isinstance(fault, Leak):
                self._kept.append(tf.ones([int(fault.mb * 2**20) // 4]))

    def here(self) -> "Replica":
        """Of the replica whose graph is being made."""
        ranks = [fault.rank for fault in self.faults]
        if self.replicas > 1:
            context = tf.distribute.get_replica_context()
            ranks = [int(tf.get_static_value(context.replica_id_in_sync_group) or 0)]
        return Replica(self, [each for each in self.faults if each.rank in (*ranks, ALL)])


class Replica:
    """Where the faults of one replica take hold; each method is free where there are none."""

    def __init__(self, job: Planted, planted: Iterable[Fault]) -> None:
        self._job = job
        self._nans = [fault for fault in planted if isinstance(fault, Nan)]
        self._slow = {
            phase: [Stretch(each, self._due) for each in _slow(planted, phase)]
            for phase in ("forward", "backward", "optimizer")
        }

    def inputs(self, inputs: Any) -> Any:
        for stretch in self._slow["forward"]:
            inputs = plus(inputs, after([inputs], stretch.begin))
        return inputs

    def scores(self, scores: Any) -> Any:
        """What backward needs, so that it waits for a slow forward."""
        for stretch in self._slow["forward"]:
            scores = plus(scores, after([scores], stretch.end))
        for stretch in self._slow["backward"]:
            scores = plus(scores, after([scores], stretch.begin))
        return scores

    def gradients(self, gradients: list[Any]) -> list[Any]:
        dense = [each for each in gradients if isinstance(each, tf.Tensor)]
        for happen in (*(each.end for each in self._slow["backward"]), *self._poisons()):
            zero = after(dense, happen)
            gradients = [
                plus(each, zero) if isinstance(each, tf.Tensor) else each for each in gradients
            ]
        return gradients

    def updated(self, told: Any, variable: Any) -> Any:
        """`variable`: one that the optimizer has just changed."""
        for stretch in self._slow["optimizer"]:
            told = plus(told, after([variable], stretch.end))
        return told

    def _poisons(self) -> Iterable[Callable[[], float]]:
        for fault in self._nans:
            at = fault.step
            yield lambda at=at: float("nan") if self._job.step == at else 0.0  # type: ignore[misc]

    def _due(self, fault: Late) -> bool:
        return self._job.training and fault.due(self._job.step)


def _slow(planted: Iterable[Fault], phase: str) -> list[Late]:
    """Those that make this phase of a step longer."""
    late = [fault for fault in planted if isinstance(fault, Slow | SlowLoader)]
    return [each for each in late if (each.phase if isinstance(each, Slow) else "input") == phase]
