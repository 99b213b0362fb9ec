"""What is trained, made once: the same for every way of training it."""

from dataclasses import dataclass
from typing import Any

import keras

from mgpu_trainers import schedule
from mgpu_trainers.options import BATCH
from mgpu_trainers.tensorflow.common import data, models
from mgpu_trainers.tensorflow.common.planted import Planted
from mgpu_trainers.tensorflow.common.saving import Run
from mgpu_trainers.tensorflow.common.strategy import Strategy

POLICY = {"fp32": "float32", "bf16": "mixed_bfloat16", "fp16": "mixed_float16"}


@dataclass(frozen=True, slots=True)
class Job:
    """`size`: samples that a replica takes at once. `growth`: those of a step, as multiples of the
    model's usual batch. `done`: steps that a checkpoint already has."""

    strategy: Strategy
    source: data.Data
    model: Any
    optimizer: Any
    planted: Planted
    run: Run
    size: int
    growth: float
    done: int

    def rate(self, step: int) -> float:
        """The learning rate of a step."""
        args = self.strategy.args
        return schedule.rate(args.lr, args.lr_scaling, self.growth, step, args.warmup)

    def batches(self, part: int, parts: int, size: int, replicas: int) -> Any:
        """One of so many parts of the training data; `replicas` take a batch from it in turn."""
        args = self.strategy.args
        return data.endless(
            self.source.training,
            (part, parts),
            size=self.planted.batch(size),
            seed=args.seed,
            taken=self.done * getattr(args, "accumulate", 1) * replicas,
            workers=args.workers,
            kept=args.cache == "on",
            late=self.planted.late(),
        )


def make(strategy: Strategy) -> Job:
    args = strategy.args
    replicas = strategy.distributed.num_replicas_in_sync
    whole, accumulate = getattr(args, "global_batch", None), getattr(args, "accumulate", 1)
    size = schedule.batch(args.model, args.batch, whole, replicas, accumulate)
    source = data.load(args.model)
    keras.utils.set_random_seed(args.seed)
    keras.mixed_precision.set_dtype_policy(POLICY[args.precision])
    with strategy.distributed.scope():
        model = models.build(args.model, source.classes)
        optimizer = keras.optimizers.AdamW(args.lr, weight_decay=0.01, epsilon=1e-8)
        if args.precision == "fp16":
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        optimizer.build(model.trainable_variables)
    planted = strategy.plant()
    kept = getattr(optimizer, "inner_optimizer", optimizer)  # another precision can go on from it
    run = Run(strategy.name, args.model, strategy.save_to(), model, kept)
    done = run.resume(args.save_to) if args.save_to else 0
    growth = size * replicas * accumulate / BATCH[args.model]
    return Job(strategy, source, model, optimizer, planted, run, size, growth, done)
