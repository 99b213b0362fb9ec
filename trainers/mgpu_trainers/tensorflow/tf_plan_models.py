"""The Keras models for `mgpu-doctor plan`: each function returns model, batch and loss."""

from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from mgpu_trainers import datasets
from mgpu_trainers.tensorflow.common import tf_models

Planned = tuple[Any, Callable[[int], Any], Callable[[Any, Any], Any]]

DIGITS = 10
CLASSES, PIXELS = 1000, 224
"""ImageNet: its classes; width and height of its images, as they are usually cropped."""


def gpt_nano() -> Planned:
    _, classes = datasets.load_characters()
    return tf_models.build("gpt-nano", classes), partial(_text, characters=classes), _loss


def cnn_nano() -> Planned:
    return tf_models.build("cnn-nano", DIGITS), partial(_images, shape=(8, 8, 1)), _loss


def resnet50() -> Planned:
    model = keras.applications.ResNet50(weights=None, classifier_activation=None)
    return model, partial(_images, shape=(PIXELS, PIXELS, 3), classes=CLASSES), _loss


def _text(samples: int, characters: int) -> Any:
    window = tf.random.uniform((samples, datasets.CONTEXT), maxval=characters, dtype=tf.int32)
    return window, tf.identity(window)


def _images(samples: int, shape: tuple[int, ...], classes: int = DIGITS) -> Any:
    labels = tf.random.uniform((samples,), maxval=classes, dtype=tf.int32)
    return tf.random.normal((samples, *shape)), labels


def _loss(model: Any, batch: Any) -> Any:
    inputs, targets = batch
    scores = tf.cast(model(inputs, training=True), tf.float32)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(targets, scores))
