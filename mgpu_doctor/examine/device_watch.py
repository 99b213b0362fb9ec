"""Samples the GPUs of this machine for a few seconds, beside whatever else is examined."""

from __future__ import annotations

import os
import threading
import time
from types import TracebackType

from mgpu_doctor.case.device_samples import DeviceReader, DeviceSample

INTERVAL = 0.25
"""Seconds between two samples."""
ENOUGH = 12
"""Samples after which GPUs can be judged: throttling needs ten under load."""
LONGEST = 6.0
"""Seconds after which a slow driver is given no more time."""
CLOSING = 2.0


class DeviceWatch:
    """Samples in a thread while the context is open. Without a driver it ends at once."""

    def __init__(self) -> None:
        self._samples: list[DeviceSample] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="devices", daemon=True)

    @property
    def samples(self) -> tuple[DeviceSample, ...]:
        """The samples so far, oldest first; empty if this machine has no GPU."""
        return tuple(sample for sample in list(self._samples) if sample.devices)

    def wait_for_enough(self) -> None:
        """Waits until there are `ENOUGH` samples, or there is no GPU, or the driver is too slow."""
        self._thread.join(LONGEST)

    def __enter__(self) -> DeviceWatch:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join(CLOSING)

    def _watch(self) -> None:
        from mgpu_probes.outside.devices import Devices  # loads the driver's library

        devices, reader = Devices(stays=True), DeviceReader(os.uname().nodename)
        try:
            for count in range(1, ENOUGH + 1):
                began = time.monotonic()
                sample = reader.read(devices.sample())
                if sample is None or not sample.devices:
                    return
                self._samples.append(sample)
                left = INTERVAL - (time.monotonic() - began)
                if count < ENOUGH and self._over.wait(max(0.0, left)):
                    return
        finally:
            devices.close()
