"""Layers that keep their inputs alone and compute the rest again in backward, as people would do
by hand. (`keras.RematScope` of Keras 3.15 fails in TensorFlow's graphs.)"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import tensorflow as tf


def recompute(model: Any) -> bool:
    """False: the model has no layer that can be. What counts batches or draws numbers (batch norm,
    dropout) is left as it is: it would do so twice."""
    found = [
        layer
        for layer in model.layers
        if not isinstance(layer, keras.layers.InputLayer) and not layer.non_trainable_variables
    ]
    for layer in found:
        layer.call = _again(layer.call)
    return bool(found)


def _again(call: Callable[..., Any]) -> Callable[..., Any]:
    def recomputed(*inputs: Any, **options: Any) -> Any:
        return tf.recompute_grad(partial(call, **options))(*inputs)

    return recomputed
