"""The data as tf.data reads it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from mgpu_trainers import raw

Arrays = tuple[Any, Any]
"""Inputs and targets, one each a sample."""


@dataclass(frozen=True, slots=True)
class Data:
    training: Arrays
    validation: Arrays
    classes: int


def load(model: str) -> Data:
    """The data for the model of that name; raises KeyError for a name that is none."""
    return {"gpt-nano": _text, "cnn-nano": _digits}[model]()


def _text() -> Data:
    characters, classes = raw.characters()
    starts = np.arange((len(characters) - 1) // raw.CONTEXT) * raw.CONTEXT
    windows = characters[starts[:, None] + np.arange(raw.CONTEXT + 1)].astype(np.int32)
    return _divided(
        (windows[:, :-1], windows[:, 1:]), len(starts) - raw.VALIDATION_WINDOWS, classes
    )


def _digits() -> Data:
    images, labels = raw.digits()
    return _divided((images[..., None], labels.astype(np.int32)), raw.TRAINING_IMAGES, classes=10)


def _divided(arrays: Arrays, cut: int, classes: int) -> Data:
    inputs, targets = arrays
    return Data((inputs[:cut], targets[:cut]), (inputs[cut:], targets[cut:]), classes)


def endless(
    arrays: Arrays,
    share: tuple[int, int],
    *,
    size: int,
    seed: int,
    taken: int,
    workers: int,
    kept: bool,
    late: Callable[[Any], Any] | None,
) -> Any:
    """Batches of one epoch after the other, each in an order of its own.

    `share`: which part of the data, of how many; `taken`: batches to leave out; `kept`: samples
    stay in memory once they were made; `late`: adds a planted delay to a batch's inputs.
    """
    part, parts = share
    samples = tf.data.Dataset.from_tensor_slices(arrays).shard(parts, part)
    if kept:
        samples = _delayed(samples.batch(size), late, workers).unbatch().cache()
    batches = samples.shuffle(len(arrays[0]), seed=seed).repeat().batch(size, drop_remainder=True)
    batches = batches.skip(taken)
    if not kept:
        batches = _delayed(batches, late, workers)
    return batches.prefetch(max(workers, 2))


def _delayed(batches: Any, late: Callable[[Any], Any] | None, workers: int) -> Any:
    if late is None:
        return batches
    return batches.map(
        lambda inputs, targets: (late(inputs), targets), num_parallel_calls=workers or None
    )
