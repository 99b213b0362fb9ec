"""The training loop of all strategies."""

import argparse
import os
import signal
import sys

import torch

from mgpu_trainers import catalogue, data, faults, kept, models, schedule
from mgpu_trainers.lifeline import end_with
from mgpu_trainers.options import BATCH
from mgpu_trainers.pytorch import LAUNCHER
from mgpu_trainers.pytorch.common.batches import endless
from mgpu_trainers.pytorch.common.compiling import Compiled, missing
from mgpu_trainers.pytorch.common.place import Place
from mgpu_trainers.pytorch.common.precision import Precision
from mgpu_trainers.pytorch.common.recompute import recompute
from mgpu_trainers.pytorch.common.saving import Run
from mgpu_trainers.pytorch.common.strategy import Strategy
from mgpu_trainers.pytorch.common.validation import validate


def main(kind: type[Strategy]) -> None:
    """Trains as the command line says."""
    args = catalogue.arguments(catalogue.find(kind.name))
    # Python would wait for a collective to end before it heard of Ctrl-C; so the kernel ends us.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    torch.set_num_threads(args.threads)
    if "RANK" in os.environ:
        end_with(LAUNCHER)
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        faults.Planted(faults.parse(args.fault, world), rank).join()
    with kind.join(kind.name, args.device, getattr(args, "timeout", None)) as place:
        train(kind(args, place), args, place)


def train(strategy: Strategy, args: argparse.Namespace, place: Place) -> None:
    if getattr(args, "compile", "off") == "on" and (why := missing(place.device)):
        sys.exit(f"{strategy.name}: --compile on {why}")
    if place.rank == 0 and (note := strategy.note()):
        print(f"{strategy.name}: {note}", file=sys.stderr)
    planted = faults.Planted(faults.parse(args.fault, place.world), place.rank)
    torch.manual_seed(args.seed)
    source = data.load(args.model)
    inner = models.build(args.model, source.classes).to(place.device)
    if args.checkpointing != "none":
        recompute(inner, args.checkpointing)
    compiled = Compiled(inner) if getattr(args, "compile", "off") == "on" else None
    model = strategy.wrap(inner)
    optimizer = strategy.optimizer(model)
    planted.attach(strategy.inside(inner), optimizer)
    precision = Precision(args.precision, place.device, autocasts=strategy.autocasts)
    run = Run(strategy, inner, optimizer, precision)
    done = run.resume(args.save_to) if args.save_to else 0
    if done and place.rank == 0:
        print(kept.told(done, args.steps), flush=True)
    share, tells = planted.share(*strategy.share()), place.rank == strategy.teller()
    size = schedule.batch(args.model, args.batch, args.global_batch, share[1], args.accumulate)
    growth = size * share[1] * args.accumulate / BATCH[args.model]
    batches = endless(
        source,
        place,
        share,
        planted,
        size=size,
        loading=args,
        seed=args.seed,
        taken=done * args.accumulate,
    )

    for step in planted.steps(strategy.steps(done, planted, run)):
        rate = schedule.rate(args.lr, args.lr_scaling, growth, step, args.warmup)
        for group in optimizer.param_groups:
            group["lr"] = rate
        for turn in range(1, args.accumulate + 1):
            inputs, targets = next(batches)
            inputs = inputs.to(place.device, non_blocking=True)
            targets = targets.to(strategy.out(), non_blocking=True)
            with strategy.turn(model, last=turn == args.accumulate):
                loss = strategy.learn(model, precision, inputs, targets)
        precision.step(optimizer)
        optimizer.zero_grad()
        strategy.updated(model, step)
        if tells and loss is not None and (step % args.log_every == 0 or step == 1):
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if args.save_every and step % args.save_every == 0:
            run.save(args.save_to, step)

    planted.end()
    strategy.trained(model)
    if compiled is not None:
        compiled.undo()
    if tells or strategy.validates_together:
        whole = model if strategy.validates_together else inner
        mean_loss, accuracy = validate(whole, source, place.device, strategy.out())
        if tells:
            print(f"validation loss {mean_loss:.4f} accuracy {accuracy:.1%}", flush=True)
