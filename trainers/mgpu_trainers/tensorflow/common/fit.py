"""The same training by `model.fit` of Keras."""

import argparse
from typing import Any

import keras

from mgpu_trainers.tensorflow.common.job import Job


def train(made: Job, args: argparse.Namespace) -> None:
    """Losses are printed as Keras tells them: means since the start."""
    replicas = made.strategy.distributed.num_replicas_in_sync
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with made.strategy.distributed.scope():
        made.model.compile(optimizer=made.optimizer, loss=loss)
    if steps := args.steps - made.done:
        made.model.fit(
            made.batches(0, 1, made.size * replicas, 1),
            steps_per_epoch=steps,
            callbacks=[Turns(made, args)],
            verbose=0,
        )


class Turns(keras.callbacks.Callback):  # type: ignore[misc]  # keras has no types
    def __init__(self, made: Job, args: argparse.Namespace) -> None:
        super().__init__()
        self.made = made
        self.args = args

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        step = self.made.done + batch + 1
        self.made.planted.begin(step)
        self.made.planted.forward()
        self.made.optimizer.learning_rate = self.made.rate(step)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        step = self.made.done + batch + 1
        if step % self.args.log_every == 0 or step == 1:
            print(f"step {step} loss {logs['loss']:.4f}", flush=True)
        if self.args.save_every and step % self.args.save_every == 0:
            self.made.run.save(step)
