"""Model, data, optimizer and checkpoint of a TensorFlow job, and what one batch does to them."""

from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from mgpu_trainers import schedule
from mgpu_trainers.options import BATCH
from mgpu_trainers.tensorflow.common import tf_data, tf_models
from mgpu_trainers.tensorflow.common.graph_faults import PlantedInGraph
from mgpu_trainers.tensorflow.common.tf_checkpoints import Checkpoint
from mgpu_trainers.tensorflow.common.tf_strategy import Strategy

POLICY = {"fp32": "float32", "bf16": "mixed_bfloat16", "fp16": "mixed_float16"}
"""Keras's name for each `--precision`."""


@dataclass(frozen=True, slots=True)
class Job:
    """Model, data, optimizer and checkpoint of one process.

    `size`: samples per replica and batch. `growth`: those of a step, as multiples of the model's
    usual batch. `done`: steps that a checkpoint already has.
    """

    strategy: Strategy
    source: tf_data.Data
    model: Any
    optimizer: Any
    planted: PlantedInGraph
    checkpoint: Checkpoint
    size: int
    growth: float
    done: int

    def rate(self, step: int) -> float:
        """The learning rate of a step."""
        args = self.strategy.args
        return schedule.learning_rate(args.lr, args.lr_scaling, self.growth, step, args.warmup)

    def batches(self, part: int, parts: int, size: int, replicas: int) -> Any:
        """Batches of one of `parts` parts of the training data; `replicas` take them in turn."""
        args = self.strategy.args
        return tf_data.endless_batches(
            self.source.training,
            (part, parts),
            size=self.planted.batch(size),
            seed=args.seed,
            batches_taken=self.done * getattr(args, "accumulate", 1) * replicas,
            workers=args.workers,
            cached=args.cache == "on",
            delay=self.planted.make_delay(),
        )


def make_job(strategy: Strategy) -> Job:
    """Builds it all, and resumes from a checkpoint if there is one."""
    args = strategy.args
    replicas = strategy.distributed.num_replicas_in_sync
    global_batch, accumulate = getattr(args, "global_batch", None), getattr(args, "accumulate", 1)
    size = schedule.batch_size(args.model, args.batch, global_batch, replicas, accumulate)
    source = tf_data.load_data(args.model)
    keras.utils.set_random_seed(args.seed)
    keras.mixed_precision.set_dtype_policy(POLICY[args.precision])
    with strategy.distributed.scope():
        model = tf_models.build(args.model, source.classes)
        optimizer = keras.optimizers.AdamW(args.lr, weight_decay=0.01, epsilon=1e-8)
        if args.precision == "fp16":
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        optimizer.build(model.trainable_variables)
    planted = strategy.plant()
    plain = getattr(optimizer, "inner_optimizer", optimizer)  # so that any precision can resume
    checkpoint = Checkpoint(strategy.name, args.model, strategy.save_to(), model, plain)
    steps_done = checkpoint.resume(args.save_to) if args.save_to else 0
    growth = size * replicas * accumulate / BATCH[args.model]
    return Job(strategy, source, model, optimizer, planted, checkpoint, size, growth, steps_done)


class Learner:
    """Computes batches on all replicas, and updates the weights."""

    def __init__(
        self, distributed: Any, model: Any, optimizer: Any, planted: PlantedInGraph, accumulate: int
    ) -> None:
        self.distributed = distributed
        self.model = model
        self.optimizer = optimizer
        self.planted = planted
        self.parts = accumulate * distributed.num_replicas_in_sync
        self.sums = [
            self._sum_of(trainable_variable)
            for trainable_variable in model.trainable_variables
            if accumulate > 1
        ]
        self._add = tf.function(lambda batch: distributed.run(self.add, args=batch))
        self._update = tf.function(lambda batch: distributed.run(self.update, args=batch))

    def turn(self, batch: Any, *, last: bool) -> Any:
        """The mean loss of each replica. `last`: update the weights; else add up gradients."""
        self.planted.forward()
        return self._update(batch) if last else self._add(batch)

    def add(self, inputs: Any, targets: Any) -> Any:
        loss, gradients = self._pass(inputs, targets)
        for total, gradient in zip(self.sums, gradients, strict=True):
            total.assign_add(gradient)
        return loss

    def update(self, inputs: Any, targets: Any) -> Any:
        loss, gradients = self._pass(inputs, targets)
        if self.sums:
            gradients = [a + b for a, b in zip(self.sums, gradients, strict=True)]
        variables = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        for total in self.sums:
            total.assign(tf.zeros_like(total))
        return self.planted.here().updated(loss, variables[-1])

    def _pass(self, inputs: Any, targets: Any) -> tuple[Any, list[Any]]:
        """Forward and backward: the loss and this replica's part of the gradients."""
        planted = self.planted.here()
        with tf.GradientTape() as tape:
            scores = planted.scores(self.model(planted.inputs(inputs), training=True))
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(targets, scores))
            scaled = self.optimizer.scale_loss(loss / self.parts)
        gradients = tape.gradient(scaled, self.model.trainable_variables)
        if self.sums:
            gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        return loss, planted.gradients(gradients)

    def _sum_of(self, variable: Any) -> Any:
        """Where each replica adds up its own gradients."""
        with self.distributed.scope():
            return tf.Variable(
                tf.zeros(variable.shape),
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM,
            )
