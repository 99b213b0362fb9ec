"""What a rank holds beside what its step allocates: contexts, workspaces, communicators.

Measured by others, on other machines: each has its source, and a margin (bytes, either way) that
covers the reports found.
"""

from __future__ import annotations

from dataclasses import dataclass

from mgpu_doctor.analysis.memory.allocator import MIB
from mgpu_doctor.analysis.memory.gpus import Gpu
from mgpu_doctor.analysis.memory.settings import Plan, Strategy


@dataclass(frozen=True, slots=True)
class Constant:
    """`size` and `margin` in bytes."""

    name: str
    size: int
    margin: int
    source: str


CONTEXT = Constant(
    "CUDA context",
    426 * MIB,
    130 * MIB,
    "unsloth-zoo #1053; 300 to 430 MiB where kernels are loaded lazily (pytorch #107667, #109888)",
)
NCCL_PAIR = Constant("NCCL, 2 ranks", 544 * MIB, 150 * MIB, "nccl #964: A100, one communicator")
NCCL = Constant("NCCL", 688 * MIB, 150 * MIB, "nccl #964: 4 A100, one communicator")
WORKSPACE = Constant(
    "cuBLAS workspace", 8_519_680, 0, "recorded on GPUs before Hopper; one a handle and stream"
)
WORKSPACE_HOPPER = Constant("cuBLAS workspace", 32 * MIB, 0, "recorded on Hopper")
SCRATCH = (
    "scratch of reductions, sorts and cuDNN is not traced: a single kernel was seen to take 528 MiB"
)
"""Said beside every prediction; it is not added, as it depends on the kernel that is chosen."""


def outside(plan: Plan, device: Gpu | None) -> tuple[Constant, ...]:
    """What is on the device beside the allocator's segments. The workspace does come from the
    allocator, but no trace on a CPU has it."""
    workspace = WORKSPACE_HOPPER if device is None or device.hopper else WORKSPACE
    found = [CONTEXT, workspace]
    if plan.strategy is not Strategy.SINGLE and plan.ranks > 1:
        found.append(NCCL_PAIR if plan.ranks == 2 else NCCL)
    return tuple(found)
