"""Keras' `fit`, alone, over replicas of one process, or as a worker of several (TF_CONFIG)."""

import os
from contextlib import nullcontext
from typing import Any

import _tf
import numpy as np
import tensorflow as tf
from _tf import keras


class Counts(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    def __init__(self) -> None:
        super().__init__()
        self.batches = 0

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        self.batches += 1


def main() -> None:
    options = _tf.parser()
    options.add_argument("--epochs", type=int, default=1)
    options.add_argument("--validate", action="store_true")
    options.add_argument("--jit", action="store_true")
    options.add_argument("--eager", action="store_true")
    options.add_argument("--per-execution", type=int, default=1)
    options.add_argument("--profile", help="folder for a profile of all steps")
    args = options.parse_args()
    _tf.few_threads()
    if "TF_CONFIG" in os.environ:  # Keras 3 cannot
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    elif args.replicas > 1:
        strategy = _tf.mirrored(args.replicas)
    else:
        strategy = tf.distribute.get_strategy()
    slow = _tf.Slow(args, 0)
    with strategy.scope():
        model = _tf.model()
        model.compile(
            optimizer=keras.optimizers.SGD(0.02),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            jit_compile=args.jit,
            run_eagerly=args.eager,
            steps_per_execution=args.per_execution,
        )
    counts = Counts()
    data = _tf.dataset(args.batch, slow)
    with tf.profiler.experimental.Profile(args.profile) if args.profile else nullcontext():
        model.fit(
            data,
            steps_per_epoch=args.steps // args.epochs,
            epochs=args.epochs,
            validation_data=data.take(5) if args.validate else None,
            callbacks=[counts],
            verbose=0,
        )
    digest = sum(float(np.abs(weight).sum()) for weight in model.get_weights())
    print(f"turns {counts.batches} weights {digest:.6f}", flush=True)


if __name__ == "__main__":
    main()
