"""What never changes about a device while the driver is loaded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pynvml

from mgpu_probes.outside.devices.errors import Json

_CORE_WORDS = 32
"""Of 64 bits each."""
_NODE_WORDS = 4


def name(handle: Any) -> Json:
    return {"name": _text(pynvml.nvmlDeviceGetName(handle))}


def uuid(handle: Any) -> Json:
    return {"uuid": _text(pynvml.nvmlDeviceGetUUID(handle))}


def bus_id(handle: Any) -> Json:
    """As the kernel writes it: NVML's own form has eight digits of domain and capitals."""
    pci = pynvml.nvmlDeviceGetPciInfo(handle)
    return {"bus_id": f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"}


def max_clock(handle: Any) -> Json:
    told = pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM)
    return {"max_sm_clock_mhz": float(told)}


def numa_node(handle: Any) -> Json:
    """Of the host's memory that is nearest. (nvmlDeviceGetNumaNodeId is another: the node that a
    coherent device's own memory makes.)"""
    words = pynvml.nvmlDeviceGetMemoryAffinity(handle, _NODE_WORDS, pynvml.NVML_AFFINITY_SCOPE_NODE)
    nodes = _bits(words)
    return {"numa_node": nodes[0] if len(nodes) == 1 else None}


def cores(handle: Any) -> Json:
    return {"cores": ranges(_bits(pynvml.nvmlDeviceGetCpuAffinity(handle, _CORE_WORDS))) or None}


def ranges(numbers: Iterable[int]) -> str:
    """As the kernel writes a list: `0-3,8`. `numbers`: ascending."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in found)


def _bits(words: Iterable[int]) -> list[int]:
    return [
        64 * place + bit for place, word in enumerate(words) for bit in range(64) if word >> bit & 1
    ]


def _text(told: Any) -> str:
    """Older versions of the binding give bytes."""
    return told.decode("utf-8", "replace") if isinstance(told, bytes) else str(told)
