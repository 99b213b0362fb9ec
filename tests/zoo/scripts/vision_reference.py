"""As reference scripts for vision train: epochs over a sampler that is divided, a collate
function that mixes images in a worker of the loader, an average of the weights, warm-up, an
evaluation that gathers its counts, and a checkpoint of rank 0 after each epoch."""

import argparse
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from _distributed import end, start
from _planted import Planted, parser
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, default_collate

BATCH, SIDE, CLASSES, EPOCHS = 32, 16, 10, 2


class Meter:
    """Running means of an epoch."""

    def __init__(self) -> None:
        self.totals: dict[str, float] = defaultdict(float)
        self.counts: dict[str, int] = defaultdict(int)

    def update(self, **values: float) -> None:
        for name, value in values.items():
            self.totals[name] += value
            self.counts[name] += 1

    def synchronize(self) -> None:
        for name in sorted(self.totals):
            both = torch.tensor([self.totals[name], float(self.counts[name])])
            dist.barrier()
            dist.all_reduce(both)
            self.totals[name], self.counts[name] = float(both[0]), int(both[1])

    def mean(self, name: str) -> float:
        return self.totals[name] / self.counts[name]


def make_images(count: int, seed: int) -> TensorDataset:
    made = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % CLASSES
    images = torch.randn(count, 3, SIDE, SIDE, generator=made) + labels.view(-1, 1, 1, 1) / 4
    return TensorDataset(images, labels)


def make_model() -> nn.Module:
    layers: list[nn.Module] = []
    for inside, outside in ((3, 16), (16, 32), (32, 32)):
        layers += [nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, CLASSES))


def train_epoch(
    model: DistributedDataParallel,
    average: AveragedModel,
    loader: Any,
    learns: tuple[Any, Any],
    planted: Planted,
) -> Meter:
    meter = Meter()
    optimizer, schedule = learns
    model.train()
    judge = nn.CrossEntropyLoss(label_smoothing=0.1)
    for index, (images, labels) in enumerate(loader):
        planted.turn()
        loss = judge(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if index % 4 == 0:
            average.update_parameters(model.module)
        meter.update(loss=loss.item())
        planted.log(loss.item())
    return meter


@torch.no_grad()
def evaluate(model: nn.Module, loader: Any) -> Meter:
    meter = Meter()
    model.eval()
    for images, labels in loader:
        meter.update(accuracy=float((model(images).argmax(1) == labels).float().mean()))
    meter.synchronize()
    return meter


def train(args: argparse.Namespace, rank: int, folder: Path) -> None:
    planted = Planted(args, rank)

    def collate(samples: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        planted.here("collate")
        images, labels = default_collate(samples)
        targets = nn.functional.one_hot(labels, CLASSES).float()
        return 0.9 * images + 0.1 * images.roll(1, 0), 0.9 * targets + 0.1 * targets.roll(1, 0)

    per_epoch = args.steps // EPOCHS
    data = make_images(per_epoch * BATCH * dist.get_world_size(), seed=0)
    sampler: DistributedSampler[Any] = DistributedSampler(data, seed=3)
    loader = DataLoader(
        data,
        BATCH,
        sampler=sampler,
        num_workers=1,
        collate_fn=collate,
        persistent_workers=True,
        multiprocessing_context="fork",
    )
    held_out = make_images(320, seed=1)
    test_loader = DataLoader(held_out, BATCH, sampler=DistributedSampler(held_out, shuffle=False))
    torch.manual_seed(0)
    model = DistributedDataParallel(make_model())
    decay = get_ema_multi_avg_fn(0.9)
    average = AveragedModel(model.module, multi_avg_fn=decay, use_buffers=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    warm_up = LinearLR(optimizer, 0.01, total_iters=5)
    schedule = SequentialLR(optimizer, [warm_up, CosineAnnealingLR(optimizer, args.steps)], [5])
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        meter = train_epoch(model, average, loader, (optimizer, schedule), planted)
        tested = evaluate(average, test_loader)
        if rank == 0:
            loss, accuracy = meter.mean("loss"), tested.mean("accuracy")
            print(f"epoch {epoch} loss {loss:.4f} accuracy {accuracy:.3f}", flush=True)
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, folder / "checkpoint.pt")
    planted.finish()


if __name__ == "__main__":
    options = parser(steps=60, place="collate").parse_args()
    rank, _ = start()
    with tempfile.TemporaryDirectory() as name:
        train(options, rank, Path(name))
    end()
