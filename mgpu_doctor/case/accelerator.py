"""What a rank's birth certificate tells of its GPU, as typed facts. Keys: docs/black-box.md."""

from __future__ import annotations

from dataclasses import dataclass

from mgpu_doctor.case.birth import flag
from mgpu_doctor.case.files import Json, text, whole
from mgpu_doctor.case.model import Rank
from mgpu_doctor.case.phase_clock import device_kind

GPU_KINDS = ("cuda", "gpu")
"""What torch (ROCm too) and TensorFlow call a GPU."""
MOST_VISIBLE = 256


@dataclass(frozen=True, slots=True)
class Accelerator:
    """None: unknown."""

    index: int | None = None
    """As the process counts: the n of `cuda:n` or `gpu:n`."""
    uuid: str | None = None
    """As NVML writes it, `GPU-…`."""
    name: str | None = None
    capability: tuple[int, int] | None = None
    """CUDA's compute capability, e.g. (9, 0)."""
    visible: tuple[str, ...] | None = None
    """CUDA_VISIBLE_DEVICES, entry by entry; None: not set."""
    by_bus: bool = False
    """CUDA_DEVICE_ORDER is PCI_BUS_ID, the order in which NVML counts."""
    precision: str | None = None
    """E.g. `float32`, `float32+bfloat16+autocast`."""
    tf32: bool | None = None
    """Whether float32 matrix products may use TF32."""
    tf32_convolutions: bool | None = None
    replicas: int | None = None
    """Devices that DataParallel spreads each batch over."""


def accelerator(rank: Rank) -> Accelerator | None:
    """The GPU of a rank; None where it computes on none, as far as is known."""
    if device_kind(rank) not in GPU_KINDS:
        return None
    index = str(rank.device).partition(":")[2]
    birth = rank.birth
    visible = birth.get("visible_devices")
    parallel = birth.get("data_parallel")
    return Accelerator(
        index=int(index) if index.isdecimal() and len(index) < 6 else None,
        uuid=text(birth.get("device_uuid"), 100),
        name=text(birth.get("device_name"), 100),
        capability=_capability(birth.get("device_capability")),
        visible=_entries(visible) if isinstance(visible, str) else None,
        by_bus=birth.get("device_order") == "PCI_BUS_ID",
        precision=text(birth.get("precision"), 100),
        tf32=flag(birth.get("tf32")),
        tf32_convolutions=flag(birth.get("tf32_convolutions")),
        replicas=_count(parallel.get("devices")) if isinstance(parallel, dict) else None,
    )


def _capability(value: Json) -> tuple[int, int] | None:
    if not (isinstance(value, list) and len(value) == 2):
        return None
    major, minor = whole(value[0], 1, 99), whole(value[1], 0, 99)
    return None if major is None or minor is None else (major, minor)


def _entries(value: str) -> tuple[str, ...]:
    entries = [entry.strip() for entry in value[:8192].split(",")[:MOST_VISIBLE]]
    return tuple(entry[:100] for entry in entries if entry)


def _count(value: Json) -> int | None:
    """A number of devices, told as such or as their list."""
    return len(value) if isinstance(value, list) else whole(value, 1)
