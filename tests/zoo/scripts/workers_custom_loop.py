"""TensorFlow's MultiWorkerMirroredStrategy with a loop of one's own: a distributed data set from
a function, several epochs, metrics, and checkpoints of the chief and of the others."""

import argparse
import json
import os
import tempfile
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import numpy as np
import tensorflow as tf
from _planted import Planted, parser

keras: Any = tf.keras
BATCH, WIDTH, CLASSES, EPOCHS = 32, 64, 10, 2


def make_data(planted: Planted, context: Any) -> Any:
    random = np.random.default_rng(0)
    x = random.normal(size=(2048, WIDTH)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :CLASSES].argmax(1)))
    data = data.shard(context.num_input_pipelines, context.input_pipeline_id).repeat().batch(BATCH)

    def look(array: Any) -> Any:
        planted.here("pipeline")
        return array

    def through(x: Any, y: Any) -> Any:
        seen = tf.numpy_function(look, [x], tf.float32)
        return tf.ensure_shape(seen, (BATCH, WIDTH)), y

    return data.map(through)


def train(args: argparse.Namespace, folder: str) -> None:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    rank = int(json.loads(os.environ["TF_CONFIG"])["task"]["index"])
    planted = Planted(args, rank)
    keras.utils.set_random_seed(0)
    with strategy.scope():
        dense = keras.layers.Dense
        model = keras.Sequential([keras.Input((WIDTH,)), dense(256, "relu"), dense(CLASSES)])
        optimizer = keras.optimizers.Adam(1e-3)
        optimizer.build(model.trainable_variables)
        seen = keras.metrics.SparseCategoricalAccuracy()
        judge = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    world = strategy.num_replicas_in_sync
    data = strategy.distribute_datasets_from_function(lambda context: make_data(planted, context))

    @tf.function  # type: ignore[untyped-decorator]  # TensorFlow has no types
    def step(batches: Any) -> Any:
        def replica(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                scores = model(x, training=True)
                loss = tf.reduce_sum(judge(y, scores)) / (BATCH * world)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            seen.update_state(y, scores)
            return loss

        losses = strategy.run(replica, args=next(batches))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    batches = iter(data)
    for epoch in range(EPOCHS):
        for _ in range(args.steps // EPOCHS):
            planted.turn()
            planted.log(float(step(batches)))
        accuracy = float(seen.result())  # all workers: it sums over them
        if planted.reports:
            print(f"epoch {epoch} accuracy {accuracy:.3f}", flush=True)
        model.save_weights(os.path.join(folder, f"{rank}.weights.h5"))
    planted.finish()


if __name__ == "__main__":
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    options = parser(steps=40, place="pipeline").parse_args()
    with tempfile.TemporaryDirectory() as name:
        train(options, name)
