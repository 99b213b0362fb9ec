"""Faults of workers and parameter servers, which run no Python of ours: the chief plants them."""

import os
import signal
import sys
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from mgpu_trainers import faults
from mgpu_trainers.cluster import Cluster, Task
from mgpu_trainers.mishaps import Kill
from mgpu_trainers.slowness import Slow
from mgpu_trainers.specs import ALL
from mgpu_trainers.tensorflow import station
from mgpu_trainers.tensorflow.common.delays import plus


class Remote:
    """Ranks are the workers, then the parameter servers."""

    def __init__(self, texts: Iterable[str], whole: Cluster) -> None:
        self._ranks = [
            Task(role, index)
            for role in ("worker", "ps")
            for index in range(len(whole.addresses[role]))
        ]
        self._planted = faults.parse(texts, len(self._ranks))

    def begin(self, step: int) -> None:
        """Called as a step is handed out."""
        for fault in self._planted:
            if isinstance(fault, Kill) and fault.step == step:
                for task in self._ranks if fault.rank == ALL else [self._ranks[fault.rank]]:
                    process = station.process(task)
                    if process is None:
                        sys.exit("tf-ps: only what runs on the chief's machine can be killed")
                    os.kill(process, signal.Signals[f"SIG{fault.signal}"])

    def late(self, inputs: Any, step: Any) -> Any:
        """In a worker's graph: a batch, after the time that it is to take longer.

        A graph cannot sleep, so it computes.
        """
        for fault in self._planted:
            if isinstance(fault, Slow):
                since = step - fault.start
                due = (station.index() == fault.rank) & (since >= 0) & (since % fault.every == 0)
                extra = tf.where(due, (fault.ms or 0) / 1000, 0.0)
                inputs = plus(inputs, _spent(tf.cast(extra, tf.float64)))
        return inputs


def _spent(seconds: Any) -> Any:
    """0.0, after so many seconds."""
    end = tf.timestamp() + seconds
    turns = tf.while_loop(lambda _: tf.timestamp() < end, lambda turns: (turns + 1,), (0.0,))
    return tf.minimum(turns[0], 0.0)
