"""Keras' `fit` on arrays, on whichever backend KERAS_BACKEND names."""

import argparse
import time
from typing import Any

import keras
import numpy as np

SAMPLES, WIDTH = 1024, 256


class Counts(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    def __init__(self, milliseconds: float) -> None:
        super().__init__()
        self.seconds = milliseconds / 1000
        self.batches = 0

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        self.batches += 1
        time.sleep(self.seconds)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--epochs", type=int, default=4)
    options.add_argument("--batch", type=int, default=64)
    options.add_argument("--ms", type=float, default=0.0, help="slept after each batch")
    args = options.parse_args()
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).normal(size=(SAMPLES, WIDTH)).astype("float32")
    dense = keras.layers.Dense
    model = keras.Sequential([dense(768, "relu"), dense(768, "relu"), dense(1)])
    model.compile(optimizer=keras.optimizers.Adam(1e-3), loss="mse")
    counts = Counts(args.ms)
    model.fit(
        x,
        x[:, :1] * 2,
        batch_size=args.batch,
        epochs=args.epochs,
        validation_split=0.125,
        callbacks=[counts],
        verbose=0,
    )
    print(f"turns {counts.batches}", flush=True)


if __name__ == "__main__":
    main()
