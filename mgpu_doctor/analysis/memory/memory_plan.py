"""The settings of a job that its memory depends on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Framework(Enum):
    """The framework of the step, and so of the allocator."""

    TORCH = "torch"
    TENSORFLOW = "tensorflow"


class Checkpointing(Enum):
    """Which layers keep no activations but compute them again in backward."""

    NONE = "none"
    HALF = "half"
    """Every second one."""
    FULL = "full"


class Precision(Enum):
    FP32 = "fp32"
    BF16 = "bf16"
    """Automatic mixed precision: weights, gradients and optimizer states stay fp32."""


class Optimizer(Enum):
    SGD = "sgd"
    ADAM = "adam"
    ADAMW = "adamw"


class Strategy(Enum):
    """How the ranks share the work."""

    SINGLE = "single"
    DDP = "ddp"
    ZERO1 = "zero1"
    """DDP with the optimizer states divided among the ranks."""
    FSDP = "fsdp"
    """Weights, gradients and optimizer states divided; layers are put together when used."""
    MIRRORED = "mirrored"
    """TensorFlow's: every replica holds all, and gradients are averaged."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a step has to be traced with. `batch`: samples of one rank in one micro-batch;
    `accumulate`: micro-batches before an update."""

    batch: int
    accumulate: int = 1
    checkpointing: Checkpointing = Checkpointing.NONE
    precision: Precision = Precision.FP32
    optimizer: Optimizer = Optimizer.ADAMW


@dataclass(frozen=True, slots=True)
class Plan:
    """A traced step and what is done to it by formula, without tracing again."""

    settings: Settings
    strategy: Strategy = Strategy.SINGLE
    ranks: int = 1
    bucket_view: bool = False
    """DDP's `gradient_as_bucket_view`."""
    chunked_loss: bool = False
    """Cross-entropy that never holds the logits of the whole batch."""
    eight_bit_states: bool = False
    """Adam's states in 8 bits."""
    offload_optimizer: bool = False
    """Optimizer states and update on the CPU."""
    fused_optimizer: bool = False
    """The update in one kernel, without temporaries."""
    expandable: bool = False
    """`expandable_segments:True`"""
    framework: Framework = Framework.TORCH
    xla: bool = False
    """The step is compiled by XLA, which lays out memory by itself: what that takes is unknown."""
