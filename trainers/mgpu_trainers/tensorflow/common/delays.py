"""Planted delays inside a graph.

A delay is a Python function that the graph calls with a number made of what must be ready before,
and whose answer is added to what must come after. It has no state in TensorFlow's eyes: what has
some is done in the order of the program, one replica after the other.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from mgpu_trainers.slowness import Late


def after(ready: Iterable[Any], happen: Callable[[], float | None]) -> Any:
    """What `happen` gives, or 0, when all of these tensors are there and it has returned."""

    def called(_: Any) -> Any:
        return np.float32(happen() or 0)

    firsts = [tf.cast(tf.reshape(each, [-1])[0], tf.float32) for each in ready]
    given = tf.numpy_function(called, [tf.stop_gradient(tf.stack(firsts))], tf.float32, False)
    given.set_shape([])
    return given


def plus(value: Any, given: Any) -> Any:
    return value + tf.cast(given, value.dtype)


class Stretch:
    """Lengthens what lies between two places in a graph, which one replica runs."""

    def __init__(self, fault: Late, due: Callable[[Late], bool]) -> None:
        self.fault = fault
        self.due = due
        self.began = 0.0

    def begin(self) -> None:
        self.began = time.perf_counter()

    def end(self) -> None:
        if self.due(self.fault):
            self.fault.spend(time.perf_counter() - self.began)
