"""Accelerate's usual script: everything prepared, `accumulate`, `backward`, metrics gathered."""

import gc
import sys
from typing import Any

import torch
from _rows import loader, options, rows
from _slow import Slow
from accelerate import Accelerator
from no_loader import Net
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader


def main() -> None:
    args = options().parse_args()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.accumulate)
    rank = accelerator.process_index
    print(f"rank {rank} of {accelerator.num_processes} starts", file=sys.stderr)
    slow = Slow(args, rank, parts=args.accumulate)
    data, held_out = rows(args, accelerator.num_processes)
    net = Net(slow)
    adam = torch.optim.Adam(net.parameters(), lr=1e-3)
    slow.in_optimizer(adam)
    model, optimizer, training, validation, scheduler = accelerator.prepare(
        net, adam, loader(data, slow), DataLoader(held_out, 64), LambdaLR(adam, lambda _: 1.0)
    )
    for index, (inputs, targets) in enumerate(training):
        if index % args.accumulate == 0:
            slow.turn()
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        slow.here("between")
        if accelerator.sync_gradients and slow.turns % 10 == 0:
            mean = accelerator.gather(loss.detach()).mean().item()
            accelerator.print(f"step {slow.turns} loss {mean:.4f}", flush=True)
            if args.validate:
                validate(accelerator, model, validation)
    accelerator.print(f"turns {slow.turns}", flush=True)
    # Before the group ends: otherwise DistributedDataParallel lets go of the group last, and waits
    # for gloo's thread with the GIL held, which that thread needs to drop a result (seen with torch
    # 2.13, without the doctor too: 25 of 60 runs never ended).
    accelerator.free_memory()
    del model, optimizer, scheduler, training, validation, net, adam, loss
    gc.collect()
    accelerator.end_training()


def validate(accelerator: Accelerator, model: nn.Module, batches: DataLoader[Any]) -> None:
    model.eval()
    errors = []
    for inputs, targets in batches:
        with torch.no_grad():
            scores = model(inputs)
        mine, wanted = accelerator.gather_for_metrics((scores, targets))
        errors.append(nn.functional.mse_loss(mine, wanted))
    accelerator.print(f"validation {torch.stack(errors).mean().item():.4f}")
    model.train()


if __name__ == "__main__":
    main()
