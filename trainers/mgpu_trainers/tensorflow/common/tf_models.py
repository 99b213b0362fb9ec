"""The two small models in Keras, as they are for PyTorch."""

from typing import Any

import keras
from keras import layers

from mgpu_trainers.datasets import CONTEXT
from mgpu_trainers.options import BLOCKS, HEADS


class Positions(layers.Layer):  # type: ignore[misc]  # keras has no types
    """Adds what a place in the text means."""

    def build(self, shape: tuple[int | None, ...]) -> None:
        self.places = self.add_weight(shape=shape[1:], initializer="zeros", name="places")

    def call(self, x: Any) -> Any:
        return x + self.places


def gpt_nano(classes: int, width: int = 128) -> Any:
    """Batch × CONTEXT characters in, batch × CONTEXT × classes scores out."""
    characters = keras.Input((CONTEXT,), dtype="int32")
    x = Positions()(layers.Embedding(classes, width)(characters))
    for _ in range(BLOCKS["gpt-nano"]):
        heads = HEADS["gpt-nano"]
        normed = layers.LayerNormalization()(x)
        x += layers.MultiHeadAttention(heads, width // heads)(normed, normed, use_causal_mask=True)
        inner = layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(x))
        x += layers.Dense(width)(inner)
    scores = layers.Dense(classes, dtype="float32")(layers.LayerNormalization()(x))
    return keras.Model(characters, scores, name="gpt-nano")


def cnn_nano(classes: int, channels: int = 32) -> Any:
    """Batch × 8 × 8 × 1 images in, batch × classes scores out."""
    images = x = keras.Input((8, 8, 1))
    for block in range(BLOCKS["cnn-nano"]):
        strides = 2 if block else 1
        x = layers.Conv2D(channels * 2**block, 3, strides, padding="same")(x)
        x = layers.ReLU()(layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x))
    scores = layers.Dense(classes, dtype="float32")(layers.Flatten()(x))
    return keras.Model(images, scores, name="cnn-nano")


def build(name: str, classes: int) -> Any:
    """The model of that name; raises KeyError for an unknown name."""
    return {"gpt-nano": gpt_nano, "cnn-nano": cnn_nano}[name](classes)
