"""DeepSpeed: `initialize`, `engine.backward`, `engine.step`."""

import sys

import deepspeed
import torch
from _rows import BATCH, loader, options, rows
from _slow import Slow
from no_loader import Net
from torch import nn


def main() -> None:
    told = options()
    told.add_argument("--stage", type=int, default=2)
    args = told.parse_args()
    deepspeed.init_distributed("gloo")
    rank, world = deepspeed.comm.get_rank(), deepspeed.comm.get_world_size()
    print(f"rank {rank} of {world} starts", file=sys.stderr)
    torch.manual_seed(rank)  # other batches on each rank; the engine spreads the weights of rank 0
    slow = Slow(args, rank, parts=args.accumulate)
    net = Net(slow)
    adam = torch.optim.Adam(net.parameters(), lr=1e-3)
    slow.in_optimizer(adam)
    config = {
        "train_micro_batch_size_per_gpu": BATCH,
        "gradient_accumulation_steps": args.accumulate,
        "zero_optimization": {"stage": args.stage},
        "zero_allow_untested_optimizer": True,
    }
    engine, *_ = deepspeed.initialize(
        model=net, optimizer=adam, model_parameters=net.parameters(), config=config
    )
    data, _held_out = rows(args, 1)
    for index, (inputs, targets) in enumerate(loader(data, slow)):
        if index % args.accumulate == 0:
            slow.turn()
        loss = nn.functional.mse_loss(engine(inputs), targets)
        engine.backward(loss)
        engine.step()
        slow.here("between")
        if rank == 0 and slow.turns % 10 == 0:
            print(f"step {slow.turns} loss {loss.item():.4f}", flush=True)
    if rank == 0:
        print(f"turns {engine.global_steps}", flush=True)
    deepspeed.comm.destroy_process_group()


if __name__ == "__main__":
    main()
