"""In which type a pass is computed, and the loss scaled where that type is too narrow for it."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

SHORT = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """Weights and optimizer stay in float32."""

    def __init__(self, name: str, device: torch.device, *, autocasts: bool) -> None:
        self.short = SHORT.get(name)
        self.autocasts = autocasts
        self.device = device.type
        self.scaler = torch.amp.GradScaler(device.type) if name == "fp16" else None

    def forward(self) -> AbstractContextManager[Any]:
        """Around forward and loss."""
        if self.short is None or not self.autocasts:
            return nullcontext()
        return torch.autocast(self.device, self.short)

    def backward(self, loss: torch.Tensor) -> None:
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        if self.scaler is None:
            optimizer.step()
        else:
            self.scaler.step(optimizer)
            self.scaler.update()

    def state(self) -> dict[str, Any]:
        return {} if self.scaler is None else self.scaler.state_dict()

    def load(self, state: dict[str, Any]) -> None:
        if self.scaler is not None and state:
            self.scaler.load_state_dict(state)
