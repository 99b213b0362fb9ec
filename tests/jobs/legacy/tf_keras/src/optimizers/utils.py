"""How the optimizers of Keras 2 reduce gradients where a strategy merges the calls of replicas."""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

Pairs = Iterable[tuple[Any, Any]]


def all_reduce_sum_gradients(grads_and_vars: Pairs) -> list[tuple[Any, Any]]:
    pairs = tuple(grads_and_vars)
    context = tf.distribute.get_replica_context()
    reduced = context.merge_call(_all_reduce_sum_fn, args=(pairs,))
    return [(gradient, weight) for gradient, (_, weight) in zip(reduced, pairs, strict=True)]


def _all_reduce_sum_fn(distribution: Any, grads_and_vars: Pairs) -> Any:
    return distribution.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, grads_and_vars)
