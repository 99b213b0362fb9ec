"""The training loop of the strategies whose replicas step together."""

import argparse
import signal
import sys

import numpy as np

from mgpu_trainers import catalogue, kept
from mgpu_trainers.tensorflow.common import fit, job
from mgpu_trainers.tensorflow.common.job import Job
from mgpu_trainers.tensorflow.common.learner import Learner
from mgpu_trainers.tensorflow.common.strategy import Strategy
from mgpu_trainers.tensorflow.common.validation import alike, validate


def main(kind: type[Strategy]) -> None:
    """Trains as the command line says."""
    args = catalogue.arguments(catalogue.find(kind.name))
    strategy = kind(args)
    # TensorFlow would go on; and Python would wait for it to come back before it heard of a signal.
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_DFL)
    tells = strategy.rank == 0
    if tells and (note := strategy.note()):
        print(f"{strategy.name}: {note}", file=sys.stderr)
    made = job.make(strategy)
    if made.done and tells:
        print(kept.told(made.done, args.steps), flush=True)
    if getattr(args, "api", "loop") == "fit":
        fit.train(made, args)
    else:
        train(made, args, tells=tells)
    made.planted.end()
    conclude(made, tells=tells)


def train(made: Job, args: argparse.Namespace, *, tells: bool) -> None:
    distributed, optimizer = made.strategy.distributed, made.optimizer
    learner = Learner(distributed, made.model, optimizer, made.planted, args.accumulate)
    here = distributed.num_replicas_in_sync // made.strategy.world
    batches = iter(
        distributed.distribute_datasets_from_function(
            lambda context: made.batches(
                context.input_pipeline_id, context.num_input_pipelines, made.size, here
            )
        )
    )
    rate = None
    for step in range(made.done + 1, args.steps + 1):
        made.planted.begin(step)
        if rate != (rate := made.rate(step)):
            optimizer.learning_rate = rate
        for turn in range(1, args.accumulate + 1):
            losses = learner.turn(next(batches), last=turn == args.accumulate)
        if tells and (step % args.log_every == 0 or step == 1):
            mine = distributed.experimental_local_results(losses)
            print(f"step {step} loss {np.mean(mine):.4f}", flush=True)
        if args.save_every and step % args.save_every == 0:
            made.run.save(step)


def conclude(made: Job, *, tells: bool) -> None:
    """Tells what was learned; all processes take part."""
    distributed = made.strategy.distributed
    loss, accuracy = validate(made.model, made.source.validation)
    replicas = distributed.num_replicas_in_sync
    same = replicas == 1 or alike(distributed, made.model)
    if tells:
        print(f"validation loss {loss:.4f} accuracy {accuracy:.1%}", flush=True)
        if replicas > 1:
            what = "the same weights" if same else "different weights"
            print(f"{replicas} replicas hold {what}", flush=True)
