"""Stands in for the package `tf_keras`, Keras 2, which would bring a second TensorFlow with it: an
optimizer with the same names, that reduces and applies gradients as its optimizers do."""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from . import utils


class Optimizer:
    def __init__(self, rate: float) -> None:
        self.rate = rate

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> None:
        # Keras 3, which made the weights, keeps TensorFlow's variables in its own.
        own = [(gradient, weight.value) for gradient, weight in grads_and_vars]
        pairs = utils.all_reduce_sum_gradients(own)
        tf.distribute.get_replica_context().merge_call(self._apply, args=(pairs,))

    def _apply(self, distribution: Any, pairs: Iterable[tuple[Any, Any]]) -> None:
        for gradient, weight in pairs:
            distribution.extended.update(weight, self._subtract, args=(gradient,), group=False)

    def _subtract(self, weight: Any, gradient: Any) -> None:
        weight.assign_sub(self.rate * gradient)
