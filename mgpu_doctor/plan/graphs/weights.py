"""Variables that have a shape but no contents: the graph of a step needs no more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

SMALL = 1 << 14
"""Numbers. Variables of fewer are made as ever: counters and rates are looked at outside graphs."""


@contextmanager
def without_contents() -> Iterator[None]:
    with tf.variable_creator_scope(_empty):
        yield


def _empty(make: Any, **asked: Any) -> Any:
    value, shape = asked.get("initial_value"), asked.get("shape")
    with tf.Graph().as_default():  # what it would be, without computing it
        made = tf.convert_to_tensor(value() if callable(value) else _described(value))
    shape = tf.TensorShape(shape) if shape is not None else made.shape
    if not shape.is_fully_defined() or shape.num_elements() < SMALL:
        return make(**asked)
    return resource_variable_ops.UninitializedVariable(
        trainable=asked.get("trainable"),
        name=asked.get("name"),
        shape=shape,
        dtype=tf.as_dtype(asked.get("dtype") or made.dtype),
        synchronization=asked.get("synchronization"),
        aggregation=asked.get("aggregation"),
    )


def _described(value: Any) -> Any:
    """An eager tensor as one of a graph."""
    if isinstance(value, tf.Tensor):
        return tf.compat.v1.placeholder(value.dtype, value.shape)
    return value
