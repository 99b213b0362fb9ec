"""How much memory known GPUs have, and what a rank needs there beyond its step's allocations.

`plan` adds these constants to a prediction; none is measured here.

Capacities: `torch`: what torch's out-of-memory message calls the total capacity, the least of the
reports found (drivers and ECC differ by up to 1 %). `NVML`: what nvidia-smi shows; a program gets
up to 2 % less. `nominal`: the data sheet's decimal gigabytes. Contexts, workspaces and
communicators were measured by others: each has its source, and a margin (bytes, either way) that
covers the reports found.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mgpu_doctor.analysis.memory.allocator import GIB, MIB
from mgpu_doctor.analysis.memory.memory_plan import Framework, Plan, Strategy

GB = 1000**3
SIZE = re.compile(r"(\d{1,6}(?:\.\d{1,3})?) ?(GiB|GB|MiB|MB)", re.IGNORECASE)
VARIANT = re.compile(r"-(\d+GB|NVL)$")
UNITS = {"gib": GIB, "gb": GB, "mib": MIB, "mb": 1000**2}


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU model. `capacity`: bytes; `hopper`: cuBLAS needs the larger workspace."""

    name: str
    capacity: int
    source: str
    hopper: bool = False


def _torch(name: str, gibibytes: float, where: str, *, hopper: bool = False) -> Gpu:
    return Gpu(name, int(gibibytes * GIB), f"torch's message ({where})", hopper)


def _nvml(name: str, mebibytes: int, where: str) -> Gpu:
    return Gpu(name, mebibytes * MIB, f"NVML ({where})")


def _nominal(name: str, gigabytes: int, *, hopper: bool = False) -> Gpu:
    return Gpu(name, gigabytes * GB, "nominal (data sheet)", hopper)


GPUS = {
    gpu.name: gpu
    for gpu in (
        _torch("A100-40GB", 39.50, "TianheWu/CoSeR #10"),
        _torch("A100-80GB", 79.14, "lianqi1008/Control-GIC #6"),
        _torch("H100-80GB", 79.11, "vllm-project/vllm #27508", hopper=True),
        _torch("H100-NVL", 93.00, "ali-vilab/VACE #56", hopper=True),
        _torch("A30", 23.53, "google/RB-Modulation #5"),
        _torch("L40", 44.40, "QwenLM/Qwen3-VL #2097"),
        _torch("L40S", 44.53, "Wan-Video/Wan2.1 #205"),
        _torch("RTX-4090", 23.52, "Soul-AILab/SoulX-FlashTalk #5"),
        _torch("RTX-A4000", 15.61, "DengKaiCQ/VGGT-Long #6"),
        _torch("T4", 14.56, "Zheng-Chong/CatVTON #133"),
        _nvml("A10", 23028, "QwenLM/Qwen3 #678"),
        _nvml("L4", 23034, "lmstudio-ai/lmstudio-bug-tracker #1638"),
        _nominal("H200", 141, hopper=True),
        _nominal("B200", 180, hopper=True),
        _nominal("V100-16GB", 16),
        _nominal("V100-32GB", 32),
        _nominal("A40", 48),
        _nominal("RTX-A6000", 48),
        _nominal("RTX-3090", 24),
    )
}


def find_gpu(text: str) -> Gpu | None:
    """The GPU with this name, in any case, or of a size such as `40GiB`; None if it is neither.
    `A100` is the variant with the least memory."""
    wanted = text.strip().upper().replace(" ", "-").replace("_", "-")
    if size := SIZE.fullmatch(text.strip()):
        capacity = int(float(size[1]) * UNITS[size[2].lower()])
        return Gpu(text.strip(), capacity, "as given") if capacity else None
    if wanted in GPUS:
        return GPUS[wanted]
    begun = [known for known in GPUS.values() if VARIANT.sub("", known.name) == wanted]
    return min(begun, key=lambda known: known.capacity, default=None)


@dataclass(frozen=True, slots=True)
class Constant:
    """Device memory outside the step's allocations: `size` ± `margin`, in bytes."""

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
"""Shown with every prediction. It is not added, because it depends on the chosen kernel."""

OTHER_ORDER = (
    "TensorFlow may rewrite the graph and run it in another order; scratch memory inside kernels "
    "is not in it"
)
"""Shown with every prediction for TensorFlow."""

_KEPT_FROM = "gpu_device.cc, MinSystemMemory: what TensorFlow leaves to drivers and libraries"
LEFT_SMALL = Constant("left to the driver", 225 * MIB, 0, _KEPT_FROM)
LEFT_VOLTA = Constant("left to the driver", 1050 * MIB, 0, _KEPT_FROM)
LEFT = Constant("left to the driver", 1536 * MIB, 0, _KEPT_FROM)
LEFT_HOPPER = Constant("left to the driver", 1800 * MIB, 0, _KEPT_FROM)
SMALL_DEVICE = 2 * 1024 * MIB
VOLTA = {"V100-16GB", "V100-32GB", "T4"}
"""Compute capability 7."""


def driver_reserve(device: Gpu | None) -> Constant:
    """The memory that TensorFlow leaves to the driver and libraries (cuDNN, cuBLAS, NCCL)."""
    if device is None or device.hopper:
        return LEFT_HOPPER
    if device.capacity - CONTEXT.size < SMALL_DEVICE:
        return LEFT_SMALL
    return LEFT_VOLTA if device.name in VOLTA else LEFT


def list_constants(plan: Plan, device: Gpu | None) -> tuple[Constant, ...]:
    """Device memory besides the allocator's segments. The cuBLAS workspace is in a segment, but a
    trace on a CPU does not have it."""
    if plan.framework is Framework.TENSORFLOW:
        return (CONTEXT, driver_reserve(device))
    workspace = WORKSPACE_HOPPER if device is None or device.hopper else WORKSPACE
    constants = [CONTEXT, workspace]
    if plan.strategy is not Strategy.SINGLE and plan.ranks > 1:
        constants.append(NCCL_PAIR if plan.ranks == 2 else NCCL)
    return tuple(constants)
