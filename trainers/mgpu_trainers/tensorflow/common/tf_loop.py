"""The training loop of the strategies whose replicas step together, the same by Keras's `fit`, and
the validation at the end of both.
"""

import argparse
import signal
import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from mgpu_trainers import catalogue, schedule
from mgpu_trainers.tensorflow.common import training_job
from mgpu_trainers.tensorflow.common.tf_data import Arrays
from mgpu_trainers.tensorflow.common.tf_strategy import Strategy
from mgpu_trainers.tensorflow.common.training_job import Job, Learner


def main(kind: type[Strategy]) -> None:
    """Trains as the command line says."""
    args = catalogue.arguments(catalogue.find(kind.name))
    strategy = kind(args)
    # TensorFlow would continue, and Python handle the signal only once TensorFlow returns.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    reports = strategy.rank == 0
    if reports and (note := strategy.note()):
        print(f"{strategy.name}: {note}", file=sys.stderr)
    job = training_job.make_job(strategy)
    if job.done and reports:
        print(schedule.describe_resumed(job.done, args.steps), flush=True)
    if getattr(args, "api", "loop") == "fit":
        fit_model(job, args)
    else:
        run_loop(job, args, reports=reports)
    job.planted.end()
    report_results(job, reports=reports)


def run_loop(job: Job, args: argparse.Namespace, *, reports: bool) -> None:
    """Trains by our own loop."""
    distributed, optimizer = job.strategy.distributed, job.optimizer
    learner = Learner(distributed, job.model, optimizer, job.planted, args.accumulate)
    replicas = distributed.num_replicas_in_sync // job.strategy.world
    batches = iter(
        distributed.distribute_datasets_from_function(
            lambda context: job.batches(
                context.input_pipeline_id, context.num_input_pipelines, job.size, replicas
            )
        )
    )
    rate = None
    for step in range(job.done + 1, args.steps + 1):
        job.planted.begin(step)
        if rate != (rate := job.rate(step)):
            optimizer.learning_rate = rate
        for turn in range(1, args.accumulate + 1):
            losses = learner.turn(next(batches), last=turn == args.accumulate)
        if reports and (step % args.log_every == 0 or step == 1):
            mine = distributed.experimental_local_results(losses)
            print(f"step {step} loss {np.mean(mine):.4f}", flush=True)
        if args.save_every and step % args.save_every == 0:
            job.checkpoint.save(step)


def report_results(job: Job, *, reports: bool) -> None:
    """Prints validation results, and whether replicas are equal; every process must call it."""
    distributed = job.strategy.distributed
    loss, accuracy = validate(job.model, job.source.validation)
    replicas = distributed.num_replicas_in_sync
    same = replicas == 1 or replicas_are_equal(distributed, job.model)
    if reports:
        print(f"validation loss {loss:.4f} accuracy {accuracy:.1%}", flush=True)
        if replicas > 1:
            comparison = "the same weights" if same else "different weights"
            print(f"{replicas} replicas hold {comparison}", flush=True)


def fit_model(job: Job, args: argparse.Namespace) -> None:
    """Trains by `fit`, which prints losses as Keras reports them: means since the start."""
    replicas = job.strategy.distributed.num_replicas_in_sync
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with job.strategy.distributed.scope():
        job.model.compile(optimizer=job.optimizer, loss=loss)
    if steps := args.steps - job.done:
        job.model.fit(
            job.batches(0, 1, job.size * replicas, 1),
            steps_per_epoch=steps,
            callbacks=[StepCallback(job, args)],
            verbose=0,
        )


class StepCallback(keras.callbacks.Callback):  # type: ignore[misc]  # keras has no types
    def __init__(self, job: Job, args: argparse.Namespace) -> None:
        super().__init__()
        self.job = job
        self.args = args

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        step = self.job.done + batch + 1
        self.job.planted.begin(step)
        self.job.planted.forward()
        self.job.optimizer.learning_rate = self.job.rate(step)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        step = self.job.done + batch + 1
        if step % self.args.log_every == 0 or step == 1:
            print(f"step {step} loss {logs['loss']:.4f}", flush=True)
        if self.args.save_every and step % self.args.save_every == 0:
            self.job.checkpoint.save(step)


def validate(model: Any, arrays: Arrays) -> tuple[float, float]:
    """Loss and accuracy over all the validation data."""
    compute = tf.function(lambda inputs: model(inputs, training=False))
    losses, hits = [], []
    for inputs, targets in tf.data.Dataset.from_tensor_slices(arrays).batch(32):
        scores = compute(inputs)
        sample_losses = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, scores)
        losses.append(np.ravel(sample_losses))
        hits.append(np.ravel(tf.argmax(scores, -1, tf.int32) == targets))
    return float(np.concatenate(losses).mean()), float(np.concatenate(hits).mean())


def replicas_are_equal(distributed: Any, model: Any) -> bool:
    """Whether all replicas, of all processes, hold the same weights."""

    def digest() -> Any:
        weights = [
            tf.reshape(tf.cast(trainable_variable, tf.float64), [-1])
            for trainable_variable in model.trainable_variables
        ]
        weight_vector = tf.concat(weights, 0)
        return tf.stack([tf.reduce_sum(weight_vector), tf.reduce_sum(tf.abs(weight_vector))])[None]

    gathered = tf.function(lambda: distributed.gather(distributed.run(digest), axis=0))()
    first, *rest = gathered.numpy()
    return all(np.array_equal(first, digests, equal_nan=True) for digests in rest)
