"""As diffusion models are trained with Accelerate: noise is added in the loop, batches
accumulate, an average of the weights follows the model, the loss is gathered, the state is saved
now and then."""

import argparse
import copy
import tempfile

import torch
from _planted import Planted, parser
from accelerate import Accelerator
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

BATCH, SIDE, TIMES, ACCUMULATE, SAVE_EVERY, DECAY = 12, 12, 100, 2, 20, 0.95


class Denoiser(nn.Module):
    """Predicts the noise in an image at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.times = nn.Embedding(TIMES, 24)
        self.enter = nn.Conv2d(1, 24, 3, padding=1)
        self.middle = nn.Sequential(
            nn.GroupNorm(4, 24), nn.SiLU(), nn.Conv2d(24, 48, 3, padding=1), nn.SiLU()
        )
        self.leave = nn.Conv2d(48, 1, 3, padding=1)

    def forward(self, images: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        hidden = self.enter(images) + self.times(times)[:, :, None, None]
        result: torch.Tensor = self.leave(self.middle(hidden))
        return result


class Average:
    """An exponential moving average of a model's weights."""

    def __init__(self, model: nn.Module) -> None:
        self.model = copy.deepcopy(model).requires_grad_(False)

    @torch.no_grad()
    def step(self, model: nn.Module) -> None:
        for average, weight in zip(self.model.parameters(), model.parameters(), strict=True):
            average.lerp_(weight, 1 - DECAY)


def train(args: argparse.Namespace, folder: str) -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATE)
    planted = Planted(args, accelerator.process_index)
    torch.manual_seed(0)
    count = args.steps * ACCUMULATE * BATCH * accelerator.num_processes
    data = TensorDataset(torch.rand(count, 1, SIDE, SIDE).round() * 2 - 1)
    net = Denoiser()
    average = Average(net)
    adam = torch.optim.AdamW(net.parameters(), lr=2e-3)
    warm_up = LambdaLR(adam, lambda step: min(1.0, (step + 1) / 10))
    model, optimizer, loader, schedule = accelerator.prepare(
        net, adam, DataLoader(data, BATCH, shuffle=True), warm_up
    )
    kept = torch.linspace(0.999, 0.01, TIMES)
    torch.manual_seed(accelerator.process_index)
    total = 0.0
    for index, (images,) in enumerate(loader):
        if index % ACCUMULATE == 0:
            planted.turn()
        noise = torch.randn_like(images)
        times = torch.randint(TIMES, (len(images),))
        share = kept[times][:, None, None, None]
        planted.here("noise")
        noisy = share.sqrt() * images + (1 - share).sqrt() * noise
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(noisy, times), noise)
            total += accelerator.gather(loss.detach().repeat(BATCH)).mean().item() / ACCUMULATE
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            average.step(accelerator.unwrap_model(model))
            planted.log(total)
            total = 0.0
            if planted.turns % SAVE_EVERY == 0:
                accelerator.save_state(folder)
    planted.finish()
    accelerator.free_memory()  # see _distributed: a group must not end before its model
    accelerator.end_training()


if __name__ == "__main__":
    options = parser(steps=40, place="noise").parse_args()
    options.ms /= ACCUMULATE
    with tempfile.TemporaryDirectory() as folder:
        train(options, folder)
