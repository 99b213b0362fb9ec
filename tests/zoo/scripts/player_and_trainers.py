"""Reinforcement learning with divided roles: rank 0 plays and sends what it saw to the trainers,
which update the policy together and send it back."""

import argparse

import torch
import torch.distributed as dist
from _distributed import end, start
from _planted import Planted, parser
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector, vector_to_parameters

SEEN, ACTIONS, MOVES, BATCH, PLAYER, TRAINS = 8, 4, 96, 32, 0, 4


def make_policy() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(SEEN, 256), nn.Tanh(), nn.Linear(256, ACTIONS))


def play(policy: nn.Module) -> list[torch.Tensor]:
    """What was seen, done and gained. The game: an action should be the largest of four values."""
    state, rows = torch.randn(SEEN), []
    with torch.no_grad():
        for _ in range(MOVES):
            action = int(torch.multinomial(policy(state).softmax(0), 1))
            gain = state[action] - state[:ACTIONS].mean()
            rows.append((state, torch.tensor(action), gain))
            state = torch.randn(SEEN)
    return [torch.stack(column) for column in zip(*rows, strict=True)]


def train(args: argparse.Namespace, rank: int, world: int) -> None:
    planted = Planted(args, rank, reports=1)
    policy = make_policy()
    trainers = dist.new_group(list(range(1, world)))
    if rank != PLAYER:
        model = DistributedDataParallel(policy, process_group=trainers)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    torch.manual_seed(100 + rank)
    for _ in range(args.steps // TRAINS):
        columns = [play(policy) if rank == PLAYER else []]
        dist.broadcast_object_list(columns, src=PLAYER)
        if rank != PLAYER:
            states, actions, gains = columns[0]
            for _ in range(TRAINS):
                planted.turn()
                planted.here("forward")
                chosen = torch.randint(MOVES, (BATCH,))
                chances = model(states[chosen]).log_softmax(1)
                taken = chances.gather(1, actions[chosen, None]).squeeze(1)
                loss = -(taken * gains[chosen]).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                planted.log(loss.item())
        weights = parameters_to_vector(policy.parameters()).detach()
        dist.broadcast(weights, src=1)
        vector_to_parameters(weights, policy.parameters())
    planted.finish()


if __name__ == "__main__":
    options = parser(steps=60, place="forward").parse_args()
    train(options, *start())
    end()
