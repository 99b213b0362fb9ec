"""What a rank holds beside what its step allocates: contexts, workspaces, communicators.

Measured by others, on other machines: each has its source, and a margin (bytes, either way) that
covers the reports found.
"""

from __future__ import annotations

from dataclasses import dataclass

from mgpu_doctor.analysis.memory.allocator import MIB
from mgpu_doctor.analysis.memory.gpus import Gpu
from mgpu_doctor.analysis.memory.settings import Framework, Plan, Strategy


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


OTHER_ORDER = (
    "TensorFlow may rewrite the graph and run it in another order; scratch memory inside kernels "
    "is not in it"
)
"""Said beside every prediction for TensorFlow."""

_KEPT_FROM = "gpu_device.cc, MinSystemMemory: what TensorFlow leaves to drivers and libraries"
LEFT_SMALL = Constant("left to the driver", 225 * MIB, 0, _KEPT_FROM)
LEFT_VOLTA = Constant("left to the driver", 1050 * MIB, 0, _KEPT_FROM)
LEFT = Constant("left to the driver", 1536 * MIB, 0, _KEPT_FROM)
LEFT_HOPPER = Constant("left to the driver", 1800 * MIB, 0, _KEPT_FROM)
SMALL_DEVICE = 2 * 1024 * MIB
VOLTA = {"V100-16GB", "V100-32GB", "T4"}
"""Compute capability 7."""


def left(device: Gpu | None) -> Constant:
    """Libraries (cuDNN, cuBLAS, NCCL) take theirs from it."""
    if device is None or device.hopper:
        return LEFT_HOPPER
    if device.capacity - CONTEXT.size < SMALL_DEVICE:
        return LEFT_SMALL
    return LEFT_VOLTA if device.name in VOLTA else LEFT


def outside(plan: Plan, device: Gpu | None) -> tuple[Constant, ...]:
    """What is on the device beside the allocator's segments. The workspace does come from the
    allocator, but no trace on a CPU has it."""
    if plan.framework is Framework.TENSORFLOW:
        return (CONTEXT, left(device))
    workspace = WORKSPACE_HOPPER if device is None or device.hopper else WORKSPACE
    found = [CONTEXT, workspace]
    if plan.strategy is not Strategy.SINGLE and plan.ranks > 1:
        found.append(NCCL_PAIR if plan.ranks == 2 else NCCL)
    return tuple(found)
