"""Reads the GPUs of this machine: NVIDIA's through NVML, AMD's through amdsmi. Any field may be
unknown."""

from __future__ import annotations

import time
from pathlib import Path

from mgpu_probes.outside.devices.amd_gpus import AmdGpus
from mgpu_probes.outside.devices.driver_polling import SLOW_PERIOD, Json
from mgpu_probes.outside.devices.nvidia_gpus import NvidiaGpus
from mgpu_probes.outside.devices.xid_events import XidLogThread, XidMerger
from mgpu_probes.outside.kernel_log import KMSG

PATIENCE = 0.8
"""Seconds; less than the second between two samples."""
END_SECONDS = 1.0


class Devices:
    """All GPUs of this machine. Keeps the drivers open. For one thread at a time.

    `patience`: seconds that a sample waits for a driver before it returns what is known so far.
    `slowly`: seconds between queries of values that change slowly: links, errors, limits.
    `details`: also query what a table of GPUs cannot show after one sample: traffic, which takes
    two, error counters of links, affinities and the topology (hundreds of calls with NVLink).
    `stays`: many samples will be taken, so listen for XIDs from the first sample on, not from the
    second. `kernel_log`: the second source of XIDs."""

    def __init__(
        self,
        patience: float = PATIENCE,
        slowly: float = SLOW_PERIOD,
        *,
        details: bool = True,
        stays: bool = False,
        kernel_log: Path = KMSG,
    ) -> None:
        self._nvidia = NvidiaGpus(patience, slowly, stays=stays, details=details)
        self._amd = AmdGpus(patience)
        self._logged = XidLogThread(kernel_log)
        self._merger = XidMerger()
        self._listens = stays

    def begin(self) -> None:
        """Starts the NVIDIA driver and the first sample of its GPUs, and does not wait for them."""
        self._nvidia.begin()

    def sample(self) -> Json:
        """One reading, ready for JSON; its names and units are those of the case's `DeviceSample`
        and `Device`. A driver's error never raises."""
        nvidia = self._nvidia.sample()
        logged = self._logged.take() if self._listens and nvidia["driver"] else []
        self._listens = True
        amd = self._amd.sample()
        first = len(nvidia["devices"])
        joined = [{**device, "index": first + device["index"]} for device in amd]
        return {
            **nvidia,
            "at": time.time(),
            "trouble": None if joined else nvidia["trouble"],
            "driver": nvidia["driver"] or self._amd.driver,
            "devices": [*nvidia["devices"], *joined],
            "events": self._merger.new(nvidia["events"], logged, nvidia["devices"]),
            "kernel_log_trouble": self._logged.trouble,
        }

    def close(self) -> None:
        """Ends the threads and closes the drivers."""
        self._nvidia.close()
        self._amd.close()
        self._logged.close(END_SECONDS)
