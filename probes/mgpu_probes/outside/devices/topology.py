"""How the GPUs of a host hang together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pynvml

from mgpu_probes.outside.devices.errors import Json

UNKNOWN = "?"
_LEVELS = {
    pynvml.NVML_TOPOLOGY_INTERNAL: "PIX",
    pynvml.NVML_TOPOLOGY_SINGLE: "PIX",
    pynvml.NVML_TOPOLOGY_MULTIPLE: "PXB",
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: "PHB",
    pynvml.NVML_TOPOLOGY_NODE: "NODE",
    pynvml.NVML_TOPOLOGY_SYSTEM: "SYS",
}
_STATUS = {
    pynvml.NVML_P2P_STATUS_OK: "OK",
    pynvml.NVML_P2P_STATUS_CHIPSET_NOT_SUPPORED: "CNS",
    pynvml.NVML_P2P_STATUS_GPU_NOT_SUPPORTED: "GNS",
    pynvml.NVML_P2P_STATUS_IOH_TOPOLOGY_NOT_SUPPORTED: "TNS",
    pynvml.NVML_P2P_STATUS_DISABLED_BY_REGKEY: "DR",
    pynvml.NVML_P2P_STATUS_NOT_SUPPORTED: "NS",
}
_READ, _NVLINK = 0, 2
"""Capabilities of nvmlDeviceGetP2PStatus. (nvidia-ml-py's own name for the first is a tuple.)"""


def topology(handles: Sequence[Any]) -> Json:
    """`levels` and `peer` between all devices by their order; None for a device out of reach."""
    count = len(handles)
    levels = [["SELF" if i == j else UNKNOWN for j in range(count)] for i in range(count)]
    peer = [["OK" if i == j else UNKNOWN for j in range(count)] for i in range(count)]
    for i, one in enumerate(handles):
        for j, other in enumerate(handles):
            if i != j and one is not None and other is not None:
                peer[i][j] = _reaches(one, other, _READ)
                if i < j:
                    levels[i][j] = levels[j][i] = _level(one, other)
    return {"levels": levels, "peer": peer}


def _level(one: Any, other: Any) -> str:
    if _reaches(one, other, _NVLINK) == "OK":
        return "NVL"
    try:
        level = int(pynvml.nvmlDeviceGetTopologyCommonAncestor(one, other))
    except (pynvml.NVMLError, AttributeError):
        return UNKNOWN
    return _LEVELS.get(level, UNKNOWN)


def _reaches(one: Any, other: Any, capability: int) -> str:
    try:
        status = int(pynvml.nvmlDeviceGetP2PStatus(one, other, capability))
    except (pynvml.NVMLError, AttributeError):
        return UNKNOWN
    return _STATUS.get(status, UNKNOWN)
