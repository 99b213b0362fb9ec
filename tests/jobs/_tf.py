"""What the TensorFlow scripts of this folder share: data, a model, and a planted delay."""

import argparse
import os
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import numpy as np
import tensorflow as tf

keras: Any = tf.keras
"""Keras 3, or Keras 2 with TF_USE_LEGACY_KERAS=1."""
PLACES = ("none", "input", "forward", "between")
SAMPLES = 1024


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=60)
    options.add_argument("--batch", type=int, default=32)
    options.add_argument("--replicas", type=int, default=1)
    options.add_argument("--fault", choices=PLACES, default="none")
    options.add_argument("--rank", type=int, default=1, help="who is slow; -1 is every rank")
    options.add_argument("--ms", type=float, default=20.0, help="how slow, each turn")
    return options


def few_threads() -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)


def mirrored(replicas: int) -> Any:
    """A strategy over so many virtual CPUs."""
    (cpu,) = tf.config.list_physical_devices("CPU")
    parts = [tf.config.LogicalDeviceConfiguration() for _ in range(replicas)]
    tf.config.set_logical_device_configuration(cpu, parts)
    return tf.distribute.MirroredStrategy([f"/cpu:{index}" for index in range(replicas)])


class Slow:
    """Sleeps in one place of one rank, each turn."""

    def __init__(self, args: argparse.Namespace, rank: int) -> None:
        self.place = args.fault if args.rank in (rank, -1) else "none"
        self.seconds = args.ms / 1000

    def here(self, place: str) -> None:
        if place == self.place:
            time.sleep(self.seconds)

    def through(self, place: str, value: Any) -> Any:
        """`value`, later, within a graph."""
        if place != self.place:
            return value

        def late(array: Any) -> Any:
            time.sleep(self.seconds)
            return array

        result = tf.numpy_function(late, [value], value.dtype)
        result.set_shape(value.shape)
        return result


def dataset(batch: int, slow: Slow) -> Any:
    """Batches of images without end."""
    random = np.random.default_rng(0)
    images = random.normal(size=(SAMPLES, 16, 16, 1)).astype("float32")
    labels = random.integers(0, 10, SAMPLES)
    endless = tf.data.Dataset.from_tensor_slices((images, labels)).repeat()
    batches = endless.batch(batch, drop_remainder=True)
    if slow.place == "input":
        return batches.map(lambda x, y: (slow.through("input", x), y))
    return batches.prefetch(2)


def model() -> Any:
    keras.utils.set_random_seed(0)
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((16, 16, 1)),
            layers.Conv2D(16, 3, activation="relu"),
            layers.Conv2D(32, 3, strides=2, activation="relu"),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )
