"""Naive model parallel training: one process, the blocks of the model on several GPUs.

    python -m mgpu_trainers.pytorch.mp --stages 2

While one GPU computes, the others are idle: this makes large models fit, not small ones fast.
"""

from typing import Any

import torch
from torch import nn

from mgpu_trainers.pytorch.common.torch_loop import main
from mgpu_trainers.pytorch.single import Single


class Mp(Single):
    name = "torch-mp"

    def devices(self) -> list[torch.device]:
        """The device of each stage."""
        device = self.place.device
        if device.type == "cpu":
            return [device] * self.args.stages
        count = torch.cuda.device_count()
        return [torch.device("cuda", stage % count) for stage in range(self.args.stages)]

    def note(self) -> str | None:
        different = len(set(self.devices()))
        if different == self.args.stages:
            return None
        devices = "on the CPU" if self.place.device.type == "cpu" else f"on {different} GPUs"
        return (
            f"all {self.args.stages} stages are {devices}: nothing moves where they share a device"
        )

    def wrap(self, model: nn.Module) -> nn.Module:
        devices = self.devices()
        blocks = list(model.get_submodule("blocks").children())
        for number, block in enumerate(blocks):
            move_to(block, devices[number * len(devices) // len(blocks)])
        for last in ("norm", "head"):
            if hasattr(model, last):
                move_to(model.get_submodule(last), devices[-1])
        return model

    def out(self) -> torch.device:
        return self.devices()[-1]


def move_to(part: nn.Module, device: torch.device) -> None:
    """Moves the part and its inputs to the device."""

    def follow(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(tensor.to(device, non_blocking=True) for tensor in inputs)

    part.to(device)
    part.register_forward_pre_hook(follow)


if __name__ == "__main__":
    main(Mp)
