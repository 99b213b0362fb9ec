"""torch.distributed.pipelining with an interleaved schedule: each rank has two stages, one early
and one late in the model."""

import argparse

import torch
from _distributed import end, start
from _planted import Planted, parser
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import ScheduleInterleaved1F1B

ROWS, WIDTH, PARTS, MICRO_BATCHES = 64, 192, 2, 4


class Part(nn.Module):
    def __init__(self, planted: Planted, number: int) -> None:
        super().__init__()
        self.planted = planted
        self.layers = nn.Sequential(
            *(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(3))
        )
        self.number = number

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.planted.here("forward")
        result: torch.Tensor = x + self.layers(x)
        return result


def train(args: argparse.Namespace, rank: int, world: int) -> None:
    planted = Planted(args, rank, reports=world - 1)
    parts = PARTS * world
    torch.manual_seed(rank)
    own = [Part(planted, rank + world * turn) for turn in range(PARTS)]
    stages = [PipelineStage(part, part.number, parts, torch.device("cpu")) for part in own]
    schedule = ScheduleInterleaved1F1B([*stages], MICRO_BATCHES, loss_fn=nn.functional.mse_loss)
    weights = [weight for part in own for weight in part.parameters()]
    optimizer = torch.optim.Adam(weights, lr=1e-3)
    data = torch.Generator().manual_seed(5)
    for _ in range(args.steps):
        planted.turn()
        x = torch.randn(ROWS, WIDTH, generator=data)
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        if rank == 0:
            schedule.step(x)
        elif rank == world - 1:
            schedule.step(target=x.tanh(), losses=losses)
        else:
            schedule.step()
        optimizer.step()
        planted.log(float(torch.stack(losses).mean()) if losses else 0.0)
    planted.finish()


if __name__ == "__main__":
    options = parser(steps=40, place="forward").parse_args()
    options.ms /= PARTS * MICRO_BATCHES
    options.at *= PARTS * MICRO_BATCHES
    train(options, *start())
    end()
