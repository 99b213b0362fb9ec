"""What one batch does to the model, on all replicas."""

from typing import Any

import tensorflow as tf

from mgpu_trainers.tensorflow.common.planted import Planted


class Learner:
    def __init__(
        self, distributed: Any, model: Any, optimizer: Any, planted: Planted, accumulate: int
    ) -> None:
        self.distributed = distributed
        self.model = model
        self.optimizer = optimizer
        self.planted = planted
        self.parts = accumulate * distributed.num_replicas_in_sync
        self.sums = [self._sum_of(each) for each in model.trainable_variables if accumulate > 1]
        self._add = tf.function(lambda batch: distributed.run(self.add, args=batch))
        self._update = tf.function(lambda batch: distributed.run(self.update, args=batch))

    def turn(self, batch: Any, *, last: bool) -> Any:
        """The mean loss of each replica. `last`: the step follows; else gradients are added up."""
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
            gradients = [tf.convert_to_tensor(each) for each in gradients]
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
