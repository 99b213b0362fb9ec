"""A custom training loop: alone, over replicas, or as a worker of several (TF_CONFIG)."""

import json
import os
import sys
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import _tf
import tensorflow as tf
from _tf import keras

import mgpu_doctor

LEGACY = Path(__file__).parent / "legacy"


def make_optimizer(model: Any, *, legacy: bool) -> Any:
    if legacy:
        sys.path.insert(0, str(LEGACY))
        return import_module("tf_keras.src.optimizers.optimizer").Optimizer(0.02)
    optimizer = keras.optimizers.SGD(0.02)
    optimizer.build(model.trainable_variables)
    return optimizer


def main() -> None:
    options = _tf.parser()
    options.add_argument("--plain", action="store_true", help="without a strategy")
    options.add_argument("--legacy", action="store_true", help="reduce gradients as Keras 2 does")
    options.add_argument("--by-hand", action="store_true", help="without an optimizer")
    options.add_argument("--eager", action="store_true", help="without tf.function")
    options.add_argument("--marked", action="store_true", help="mark phases and steps itself")
    args = options.parse_args()
    _tf.few_threads()
    rank = int(json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("index", 0))
    slow = _tf.Slow(args, rank)
    if "TF_CONFIG" in os.environ:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    elif args.replicas > 1:
        strategy = _tf.mirrored(args.replicas)
    else:
        strategy = tf.distribute.get_strategy()
    with strategy.scope():
        model = _tf.model()
        optimizer = make_optimizer(model, legacy=args.legacy)
    losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    world = strategy.num_replicas_in_sync

    def train(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            predicted = model(slow.through("forward", images), training=True)
            loss = tf.reduce_sum(losses(labels, predicted)) / (args.batch * world)
        gradients = tape.gradient(loss, model.trainable_variables)
        if args.by_hand:
            for weight, gradient in zip(model.trainable_variables, gradients, strict=True):
                weight.assign_sub(0.02 * gradient)
        else:
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    def step(images: Any, labels: Any) -> Any:
        if args.plain:
            return train(images, labels)
        per_replica = strategy.run(train, args=(images, labels))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica, axis=None)

    run = step if args.eager else tf.function(step)
    data = _tf.dataset(args.batch * (args.replicas if args.replicas > 1 else 1), slow)
    if not args.plain:
        options_ = tf.data.Options()
        options_.experimental_distribute.auto_shard_policy = (
            tf.data.experimental.AutoShardPolicy.OFF
        )
        data = strategy.experimental_distribute_dataset(data.with_options(options_))
    phase, count = (mgpu_doctor.phase, mgpu_doctor.step) if args.marked else (nullcontext, int)
    first = last = 0.0
    batches = iter(data)
    for _ in range(args.steps):
        with phase("input"):
            images, labels = next(batches)
        last = float(run(images, labels))
        first = first or last
        slow.here("between")
        count()
    print(f"turns {args.steps} loss {first:.4f} -> {last:.4f}", flush=True)


if __name__ == "__main__":
    main()
