"""How forward and backward are computed: precision, activation checkpointing, compilation."""

import importlib.util
import os
import shutil
import sys
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils import checkpoint

SHORT = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""Types shorter than float32, by their option."""


class Precision:
    """The type of a pass, and the loss scaling of fp16; weights and optimizer stay float32."""

    def __init__(self, name: str, device: torch.device, *, autocasts: bool) -> None:
        self.short = SHORT.get(name)
        self.autocasts = autocasts
        self.device = device.type
        self.scaler = torch.amp.GradScaler(device.type) if name == "fp16" else None

    def forward(self) -> AbstractContextManager[Any]:
        """A context for forward and loss."""
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


EXPENSIVE = frozenset(
    f"aten.{name}.default"
    for name in (
        *("mm", "addmm", "bmm", "convolution"),
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
    )
)
"""Operations whose results selective checkpointing keeps: most of the work, few of the bytes."""


def checkpoint_activations(model: nn.Module, kind: str) -> None:
    """Makes backward recompute what each block computed, inside of its hooks and wrappers.

    `kind`: full, or selective, which keeps results that are expensive to compute.
    """
    options: dict[str, Any] = {}
    if kind == "selective":
        options["context_fn"] = partial(
            checkpoint.create_selective_checkpoint_contexts, keep_expensive
        )
    for block in model.get_submodule("blocks").children():
        again = partial(checkpoint.checkpoint, block.forward, use_reentrant=False, **options)
        block.forward = again


def keep_expensive(
    _context: Any, operation: Any, *_: Any, **__: Any
) -> "checkpoint.CheckpointPolicy":  # not in every version of torch
    """The policy of selective checkpointing for one operation."""
    policies = checkpoint.CheckpointPolicy
    return policies.MUST_SAVE if str(operation) in EXPENSIVE else policies.PREFER_RECOMPUTE


def missing_compiler(device: torch.device) -> str | None:
    """What torch.compile needs and does not find, as the rest of a sentence; None: nothing."""
    if device.type == "cuda":
        if importlib.util.find_spec("triton") is None:
            return "needs Triton, which compiles for GPUs: pip install triton"
        return None
    compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(compiler) is None:
        return (
            f"needs a C++ compiler on CPUs, and there is no {compiler}: install one (on Debian and "
            "Ubuntu: apt install g++), or name yours in CXX"
        )
    return None


class CompiledBlocks:
    """Compiles what each block computes and nothing around it: hooks, faults and wrappers stay as
    they are, and blocks of a kind are compiled once."""

    def __init__(self, model: nn.Module) -> None:
        self._before = [
            (block, block.forward) for block in model.get_submodule("blocks").children()
        ]
        for block, forward in self._before:
            block.forward = torch.compile(forward, dynamic=False)

    def undo(self) -> None:
        """Restores the blocks, as batches of other sizes would all be compiled again."""
        for block, forward in self._before:
            block.forward = forward
