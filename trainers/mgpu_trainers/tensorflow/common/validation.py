"""What was learned, held against data nobody trained on; whether replicas learned alike."""

from typing import Any

import numpy as np
import tensorflow as tf

from mgpu_trainers.tensorflow.common.data import Arrays


def validate(model: Any, arrays: Arrays) -> tuple[float, float]:
    """Loss and accuracy over all the validation data."""
    compute = tf.function(lambda inputs: model(inputs, training=False))
    losses, hits = [], []
    for inputs, targets in tf.data.Dataset.from_tensor_slices(arrays).batch(32):
        scores = compute(inputs)
        each = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, scores)
        losses.append(np.ravel(each))
        hits.append(np.ravel(tf.argmax(scores, -1, tf.int32) == targets))
    return float(np.concatenate(losses).mean()), float(np.concatenate(hits).mean())


def alike(distributed: Any, model: Any) -> bool:
    """All replicas, of all processes, hold the same weights."""

    def digest() -> Any:
        weights = [
            tf.reshape(tf.cast(each, tf.float64), [-1]) for each in model.trainable_variables
        ]
        whole = tf.concat(weights, 0)
        return tf.stack([tf.reduce_sum(whole), tf.reduce_sum(tf.abs(whole))])[None]

    gathered = tf.function(lambda: distributed.gather(distributed.run(digest), axis=0))()
    first, *others = gathered.numpy()
    return all(np.array_equal(first, each, equal_nan=True) for each in others)
