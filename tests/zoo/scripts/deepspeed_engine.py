"""DeepSpeed's engine with ZeRO 2: the engine owns backward and the update."""

import argparse

import deepspeed
import torch
from _gpt import LENGTH, Gpt, make_tokens
from _planted import Planted, parser

BATCH = 12
for name in deepspeed.ops.__compatible_ops__:  # else it compiles one for minutes, on CPUs
    deepspeed.ops.__compatible_ops__[name] = False


def train(args: argparse.Namespace) -> None:
    deepspeed.init_distributed("gloo")
    rank = deepspeed.comm.get_rank()
    planted = Planted(args, rank)
    torch.manual_seed(0)
    net = Gpt(planted)
    config = {
        "train_micro_batch_size_per_gpu": BATCH,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 2},
        "zero_allow_untested_optimizer": True,
    }
    engine, *_ = deepspeed.initialize(
        model=net,
        optimizer=torch.optim.AdamW(net.parameters(), lr=1e-3),
        model_parameters=net.parameters(),
        config=config,
    )
    drawn = torch.Generator().manual_seed(rank)
    tokens = make_tokens(20_000)
    for _ in range(args.steps):
        planted.turn()
        starts = torch.randint(len(tokens) - LENGTH - 1, (BATCH,), generator=drawn)
        rows = torch.stack([tokens[i : i + LENGTH + 1] for i in starts.tolist()])
        loss = engine(rows[:, :-1], rows[:, 1:])
        engine.backward(loss)
        engine.step()
        planted.log(loss.item())
    planted.finish()
    deepspeed.comm.destroy_process_group()


if __name__ == "__main__":
    train(parser(steps=40, place="forward").parse_args())
