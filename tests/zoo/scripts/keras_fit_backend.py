"""Keras 3's `fit` in one process, on the backend that KERAS_BACKEND names."""

import argparse
from typing import Any

import keras
import numpy as np
from _planted import Planted, parser

BATCH, WIDTH, EPOCHS = 64, 256, 2


class Prints(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    def __init__(self, planted: Planted) -> None:
        super().__init__()
        self.planted = planted

    def on_train_batch_begin(self, *_: Any, **__: Any) -> None:
        self.planted.turn()

    def on_train_batch_end(self, _batch: int, logs: dict[str, Any]) -> None:
        self.planted.here("callback")
        self.planted.log(float(logs["loss"]))


def train(args: argparse.Namespace) -> None:
    planted = Planted(args, 0)
    keras.utils.set_random_seed(0)
    count = args.steps // EPOCHS * BATCH
    x = np.random.default_rng(0).normal(size=(count, WIDTH)).astype("float32")
    dense = keras.layers.Dense
    hidden = [dense(512, "relu"), dense(512, "relu")]
    model = keras.Sequential([keras.Input((WIDTH,)), *hidden, dense(1)])
    model.compile(optimizer=keras.optimizers.Adam(1e-3), loss="mse")
    prints = Prints(planted)
    model.fit(x, x[:, :1] * 2, BATCH, EPOCHS, verbose=0, callbacks=[prints])
    planted.finish()


if __name__ == "__main__":
    train(parser(steps=60, place="callback").parse_args())
