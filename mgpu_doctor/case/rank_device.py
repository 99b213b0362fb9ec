"""The device of a rank, and the clock that its phases were stamped with.

While a GPU computes, the host runs ahead: it only queues work. Host stamps then say when work was
queued, not when it ran. A wait for data that the queue hides looks like lost time, and a wait for
other ranks looks like own work. So phases that the host stamped for an asynchronous device are
never compared between ranks, and no gain is predicted from them.
"""

from __future__ import annotations

from dataclasses import dataclass

from mgpu_doctor.case.model import Rank
from mgpu_doctor.case.process_metadata import PhaseClock

GPU_KINDS = ("cuda", "gpu")
"""What torch (ROCm too) and TensorFlow call a GPU."""
MOST_VISIBLE = 256


@dataclass(frozen=True, slots=True)
class Accelerator:
    """None: unknown."""

    index: int | None = None
    """Index in the process: the n of `cuda:n` or `gpu:n`."""
    uuid: str | None = None
    """UUID as NVML writes it, `GPU-…`."""
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
    """The GPU of a rank; None if it is not known to compute on one."""
    if device_kind(rank) not in GPU_KINDS:
        return None
    index = str(rank.device).partition(":")[2]
    metadata = rank.metadata
    visible = metadata.visible_devices
    return Accelerator(
        index=int(index) if index.isdecimal() and len(index) < 6 else None,
        uuid=metadata.device_uuid,
        name=metadata.device_name,
        capability=metadata.device_capability,
        visible=None if visible is None else _entries(visible),
        by_bus=metadata.device_order == "PCI_BUS_ID",
        precision=metadata.precision,
        tf32=metadata.tf32,
        tf32_convolutions=metadata.tf32_convolutions,
        replicas=metadata.data_parallel_devices or None,
    )


def _entries(visible: str) -> tuple[str, ...]:
    entries = [entry.strip() for entry in visible.split(",")[:MOST_VISIBLE]]
    return tuple(entry[:100] for entry in entries if entry)


def phase_clock(rank: Rank) -> PhaseClock | None:
    """The clock of the rank's phases; None: unknown."""
    return rank.metadata.clock


def device_kind(rank: Rank) -> str:
    """`cpu`, `cuda`, `gpu` (TensorFlow), `xpu`, …: what comes before the index. A rank that names
    no device computes on the CPU."""
    return str(rank.device or "cpu").partition(":")[0].lower()


def is_host_stamped(rank: Rank) -> bool:
    """Whether the rank computes on a device, and anything but that device's clock stamped its
    step records. Where a box has room for device times, these alone are the device's."""
    on_device = phase_clock(rank) is PhaseClock.DEVICE and rank.device_times is None
    return device_kind(rank) != "cpu" and not on_device


def record_clock(rank: Rank) -> PhaseClock:
    """The clock of the phases in the rank's step records."""
    if is_host_stamped(rank):
        return PhaseClock.HOST
    return PhaseClock.CPU if device_kind(rank) == "cpu" else PhaseClock.DEVICE
