"""A model of Keras 3 on its torch backend, trained as a module of torch: DistributedDataParallel
and a loop of one's own, as Keras' guide to several GPUs shows it."""

import argparse
import os

os.environ["KERAS_BACKEND"] = "torch"
import keras
import torch
from _distributed import end, start
from _planted import Planted, parser
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BATCH, WIDTH, CLASSES = 32, 128, 10


def train(args: argparse.Namespace, rank: int, world: int) -> None:
    planted = Planted(args, rank)
    keras.utils.set_random_seed(0)
    made = torch.Generator().manual_seed(0)
    count = args.steps * BATCH * world
    x = torch.randn(count, WIDTH, generator=made)
    data = TensorDataset(x, x[:, :CLASSES].argmax(1))
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data, seed=1)
    loader = DataLoader(data, BATCH, sampler=sampler)
    dense = keras.layers.Dense
    inner = keras.Sequential(
        [keras.Input((WIDTH,)), dense(384, "relu"), dense(384, "relu"), dense(CLASSES)]
    )
    model = DistributedDataParallel(inner)
    judge = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for inputs, targets in loader:
        planted.turn()
        loss = judge(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        planted.here("gradients")
        optimizer.step()
        planted.log(loss.item())
    planted.finish()


if __name__ == "__main__":
    options = parser(steps=40, place="gradients").parse_args()
    train(options, *start())
    end()
