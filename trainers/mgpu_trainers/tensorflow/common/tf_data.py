"""The data as tf.data reads it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from mgpu_trainers import datasets

Arrays = tuple[Any, Any]
"""Inputs and targets, one each a sample."""


@dataclass(frozen=True, slots=True)
class Data:
    training: Arrays
    validation: Arrays
    classes: int


def load_data(model: str) -> Data:
    """The data for the model of that name; raises KeyError for an unknown name."""
    return {"gpt-nano": _load_text, "cnn-nano": _load_digits}[model]()


def _load_text() -> Data:
    characters, classes = datasets.load_characters()
    starts = np.arange((len(characters) - 1) // datasets.CONTEXT) * datasets.CONTEXT
    windows = characters[starts[:, None] + np.arange(datasets.CONTEXT + 1)].astype(np.int32)
    return _split(
        (windows[:, :-1], windows[:, 1:]), len(starts) - datasets.VALIDATION_WINDOWS, classes
    )


def _load_digits() -> Data:
    images, labels = datasets.load_digits()
    return _split(
        (images[..., None], labels.astype(np.int32)), datasets.TRAINING_IMAGES, classes=10
    )


def _split(arrays: Arrays, cut: int, classes: int) -> Data:
    inputs, targets = arrays
    return Data((inputs[:cut], targets[:cut]), (inputs[cut:], targets[cut:]), classes)


def endless_batches(
    arrays: Arrays,
    share: tuple[int, int],
    *,
    size: int,
    seed: int,
    batches_taken: int,
    workers: int,
    cached: bool,
    delay: Callable[[Any], Any] | None,
) -> Any:
    """Batches of one epoch after the other, each in an order of its own.

    `share`: which part of the data, of how many; `taken`: batches to leave out; `cached`: samples
    stay in memory once they were made; `delay`: adds a planted delay to a batch's inputs.
    """
    part, parts = share
    samples = tf.data.Dataset.from_tensor_slices(arrays).shard(parts, part)
    if cached:
        samples = _add_delay(samples.batch(size), delay, workers).unbatch().cache()
    batches = samples.shuffle(len(arrays[0]), seed=seed).repeat().batch(size, drop_remainder=True)
    batches = batches.skip(batches_taken)
    if not cached:
        batches = _add_delay(batches, delay, workers)
    return batches.prefetch(max(workers, 2))


def _add_delay(batches: Any, delay: Callable[[Any], Any] | None, workers: int) -> Any:
    if delay is None:
        return batches
    return batches.map(
        lambda inputs, targets: (delay(inputs), targets), num_parallel_calls=workers or None
    )
