"""The training loop and the validation of all PyTorch strategies."""

import argparse
import os
import signal
import sys

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from mgpu_trainers import catalogue, faults, schedule
from mgpu_trainers.options import BATCH
from mgpu_trainers.planting import Planted
from mgpu_trainers.process_lifetime import end_with
from mgpu_trainers.pytorch import LAUNCHER
from mgpu_trainers.pytorch.common import torch_data, torch_models
from mgpu_trainers.pytorch.common.passes import (
    CompiledBlocks,
    Precision,
    checkpoint_activations,
    missing_compiler,
)
from mgpu_trainers.pytorch.common.process_group import Place
from mgpu_trainers.pytorch.common.torch_checkpoints import Checkpoint
from mgpu_trainers.pytorch.common.torch_data import endless_batches
from mgpu_trainers.pytorch.common.torch_strategy import Strategy


def main(kind: type[Strategy]) -> None:
    """Trains as the command line says."""
    args = catalogue.arguments(catalogue.find(kind.name))
    # Python would wait for a collective to end before it heard of Ctrl-C; so the kernel ends us.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    torch.set_num_threads(args.threads)
    if "RANK" in os.environ:
        end_with(LAUNCHER)
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        Planted(faults.parse(args.fault, world), rank).join()
    with kind.join(kind.name, args.device, getattr(args, "timeout", None)) as place:
        train(kind(args, place), args, place)


def train(strategy: Strategy, args: argparse.Namespace, place: Place) -> None:
    """Trains `args.steps` steps and validates; prints losses on the reporting rank."""
    if getattr(args, "compile", "off") == "on" and (why := missing_compiler(place.device)):
        sys.exit(f"{strategy.name}: --compile on {why}")
    if place.rank == 0 and (note := strategy.note()):
        print(f"{strategy.name}: {note}", file=sys.stderr)
    planted = Planted(faults.parse(args.fault, place.world), place.rank)
    torch.manual_seed(args.seed)
    source = torch_data.load_data(args.model)
    inner = torch_models.build(args.model, source.classes).to(place.device)
    if args.checkpointing != "none":
        checkpoint_activations(inner, args.checkpointing)
    compiled = CompiledBlocks(inner) if getattr(args, "compile", "off") == "on" else None
    model = strategy.wrap(inner)
    optimizer = strategy.optimizer(model)
    planted.attach(strategy.inside(inner), optimizer)
    precision = Precision(args.precision, place.device, autocasts=strategy.autocasts)
    checkpoint = Checkpoint(strategy, inner, optimizer, precision)
    steps_done = checkpoint.resume(args.save_to) if args.save_to else 0
    if steps_done and place.rank == 0:
        print(schedule.describe_resumed(steps_done, args.steps), flush=True)
    share, reports = planted.share(*strategy.share()), place.rank == strategy.reporter()
    size = schedule.batch_size(args.model, args.batch, args.global_batch, share[1], args.accumulate)
    growth = size * share[1] * args.accumulate / BATCH[args.model]
    batches = endless_batches(
        source,
        place,
        share,
        planted,
        size=size,
        loading=args,
        seed=args.seed,
        batches_taken=steps_done * args.accumulate,
    )

    for step in planted.steps(strategy.steps(steps_done, planted, checkpoint)):
        rate = schedule.learning_rate(args.lr, args.lr_scaling, growth, step, args.warmup)
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
        if reports and loss is not None and (step % args.log_every == 0 or step == 1):
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if args.save_every and step % args.save_every == 0:
            checkpoint.save(args.save_to, step)

    planted.end()
    strategy.trained(model)
    if compiled is not None:
        compiled.undo()
    if reports or strategy.validates_together:
        validated = model if strategy.validates_together else inner
        mean_loss, accuracy = validate(validated, source, place.device, strategy.out())
        if reports:
            print(f"validation loss {mean_loss:.4f} accuracy {accuracy:.1%}", flush=True)


@torch.no_grad()
def validate(
    model: nn.Module, source: torch_data.Data, device: torch.device, out: torch.device
) -> tuple[float, float]:
    """Loss and accuracy over all the validation data; `device`: where the model takes it."""
    model.eval()
    losses, hits = [], []
    for inputs, targets in DataLoader(source.validation, 32):
        scores, wanted = model(inputs.to(device)), targets.to(out)
        losses.append(cross_entropy(scores, wanted, reduction="none").flatten())
        hits.append((scores.argmax(1) == wanted).flatten())
    return torch.cat(losses).mean().item(), torch.cat(hits).float().mean().item()
