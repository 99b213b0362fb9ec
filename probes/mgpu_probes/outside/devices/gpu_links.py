"""How GPUs are connected: to the host (PCIe), to each other (NVLink), and their topology."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pynvml

from mgpu_probes.outside.devices.driver_polling import Json, Rate, is_unsupported

KILOBYTE, KIBIBYTE = 1000, 1024
_ALL_LINKS = 0xFFFFFFFF
_MOST_LINKS = 64
_REMOTE = {
    pynvml.NVML_NVLINK_DEVICE_TYPE_GPU: "gpu",
    pynvml.NVML_NVLINK_DEVICE_TYPE_IBMNPU: "cpu",
    pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH: "switch",
}
_ERRORS = {
    "replay": pynvml.NVML_NVLINK_ERROR_DL_REPLAY,
    "recovery": pynvml.NVML_NVLINK_ERROR_DL_RECOVERY,
    "crc_flit": pynvml.NVML_NVLINK_ERROR_DL_CRC_FLIT,
    "crc_data": pynvml.NVML_NVLINK_ERROR_DL_CRC_DATA,
    "ecc": pynvml.NVML_NVLINK_ERROR_DL_ECC_DATA,
}
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


def query_greatest_pcie_link(handle: Any) -> Json:
    return {
        "pcie": {
            "generation_most": int(pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)),
            "width_most": int(pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle)),
        }
    }


def query_pcie_link(handle: Any) -> Json:
    return {
        "pcie": {
            "generation": int(pynvml.nvmlDeviceGetCurrPcieLinkGeneration(handle)),
            "width": int(pynvml.nvmlDeviceGetCurrPcieLinkWidth(handle)),
        }
    }


def query_pcie_replays(handle: Any) -> Json:
    return {"pcie": {"replays": int(pynvml.nvmlDeviceGetPcieReplayCounter(handle))}}


def query_pcie_traffic(handle: Any) -> Json:
    """Bytes per second. The driver measures for 20 ms per value, and the caller waits."""
    sent = pynvml.nvmlDeviceGetPcieThroughput(handle, pynvml.NVML_PCIE_UTIL_TX_BYTES)
    received = pynvml.nvmlDeviceGetPcieThroughput(handle, pynvml.NVML_PCIE_UTIL_RX_BYTES)
    return {"pcie": {"sent": float(sent) * KILOBYTE, "received": float(received) * KILOBYTE}}


class NvLinks:
    """The NVLinks of one device. Unsupported counters are queried only once."""

    def __init__(self) -> None:
        self._count: int | None = None
        self._kinds = dict(_ERRORS)
        self._ends: dict[int, str | None] = {}
        """The device at the other end of each link that was up when last queried; None: unknown.
        Once it is known, it stays the same while the link is up."""
        self._sent, self._received = Rate(), Rate()

    def states(self, handle: Any) -> Json:
        """Whether each link is up."""
        links = []
        for link in range(self._links(handle)):
            try:
                up = bool(pynvml.nvmlDeviceGetNvLinkState(handle, link))
            except pynvml.NVMLError as error:
                if error.value == pynvml.NVML_ERROR_INVALID_ARGUMENT:
                    break
                if is_unsupported(error):
                    continue
                raise
            links.append({"link": link, "up": up})
        self._ends = {link["link"]: self._ends.get(link["link"]) for link in links if link["up"]}
        return {"nvlinks": links}

    def ends(self, handle: Any) -> Json:
        """The device at the other end of each link that was up when `states` was called."""
        self._ends = {
            link: _remote(handle, link) if end is None else end for link, end in self._ends.items()
        }
        return {"nvlink_ends": self._ends}

    def errors(self, handle: Any) -> Json:
        """Error counters by link. Raises NVMLError if they are denied."""
        spell: dict[int, list[list[str | int]]] = {}
        for link in range(self._links(handle)):
            counters: list[list[str | int]] = []
            for kind, number in list(self._kinds.items()):
                try:
                    count = int(pynvml.nvmlDeviceGetNvLinkErrorCounter(handle, link, number))
                except pynvml.NVMLError as error:
                    if error.value == pynvml.NVML_ERROR_INVALID_ARGUMENT:
                        break
                    if not is_unsupported(error):
                        raise
                    self._kinds.pop(kind)
                else:
                    counters.append([kind, count])
            spell[link] = counters
        return {"nvlink_errors": spell}

    def traffic(self, handle: Any) -> Json:
        """Bytes per second of all links together. The counters are in KiB."""
        ids = (
            (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, _ALL_LINKS),
            (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, _ALL_LINKS),
        )
        if self._count == 0:
            return {}
        now = time.monotonic()
        sent, received = (_counter(field) for field in pynvml.nvmlDeviceGetFieldValues(handle, ids))
        return {
            "nvlink_sent": self._sent.of(sent, now),
            "nvlink_received": self._received.of(received, now),
        }

    def _links(self, handle: Any) -> int:
        """The maximum number of links; single links may be missing."""
        if self._count is None:
            self._count = _link_count(handle)
        return self._count


def _link_count(handle: Any) -> int:
    (field,) = pynvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT])
    if field.nvmlReturn == pynvml.NVML_ERROR_NOT_SUPPORTED:
        return 0
    if field.nvmlReturn != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(field.nvmlReturn)
    return min(int(field.value.uiVal), _MOST_LINKS)


def _counter(field: Any) -> float | None:
    return None if field.nvmlReturn else float(field.value.ullVal) * KIBIBYTE


def _remote(handle: Any, link: int) -> str | None:
    try:
        return _REMOTE.get(int(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link)))
    except (pynvml.NVMLError, AttributeError) as error:
        if is_unsupported(error):
            return None
        raise


def query_topology(handles: Sequence[Any]) -> Json:
    """`levels` and `peer` access between all devices, by index. Handle None: out of reach."""
    count = len(handles)
    levels = [["SELF" if i == j else UNKNOWN for j in range(count)] for i in range(count)]
    peer = [["OK" if i == j else UNKNOWN for j in range(count)] for i in range(count)]
    for i, handle in enumerate(handles):
        for j, other in enumerate(handles):
            if i != j and handle is not None and other is not None:
                peer[i][j] = _reaches(handle, other, _READ)
                if i < j:
                    levels[i][j] = levels[j][i] = _level(handle, other)
    return {"levels": levels, "peer": peer}


def _level(first: Any, other: Any) -> str:
    if _reaches(first, other, _NVLINK) == "OK":
        return "NVL"
    try:
        level = int(pynvml.nvmlDeviceGetTopologyCommonAncestor(first, other))
    except (pynvml.NVMLError, AttributeError):
        return UNKNOWN
    return _LEVELS.get(level, UNKNOWN)


def _reaches(first: Any, other: Any, capability: int) -> str:
    try:
        status = int(pynvml.nvmlDeviceGetP2PStatus(first, other, capability))
    except (pynvml.NVMLError, AttributeError):
        return UNKNOWN
    return _STATUS.get(status, UNKNOWN)
