"""All GPUs of NVML. Separate threads query the driver: the caller waits for a bounded time, then
continues with the values that are known so far."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

import pynvml

from mgpu_probes.outside.devices.driver_polling import (
    ONCE,
    Json,
    PollingThread,
    Question,
    explain_no_devices,
)
from mgpu_probes.outside.devices.gpu_links import query_topology
from mgpu_probes.outside.devices.nvml_gpu import NvmlGpu, list_questions
from mgpu_probes.outside.devices.xid_events import XidListener

LOOK_SECONDS = 5.0
"""Seconds between checks for a driver that is not installed: each takes 30 us, starts nothing."""
RETRY_SECONDS = 30.0
"""Seconds between attempts to start an installed driver: each may run `nvidia-modprobe`."""
MAP_SECONDS = 600.0
"""Seconds between queries of the topology."""
START_SECONDS = 10.0
"""Seconds that the first sample waits for a driver that has to wake its GPUs."""
END_SECONDS = 1.0
SILENT = "the NVIDIA driver does not answer"


class NvidiaGpus:
    """Samples all NVIDIA GPUs. `patience`: seconds that a sample waits for the driver. `slowly`:
    seconds between queries of values that change slowly. `stays`: more than one sample will be
    taken. `details`: as in `Devices`."""

    def __init__(
        self, patience: float, slowly: float, *, stays: bool = False, details: bool = True
    ) -> None:
        self._patience = patience
        self._questions = partial(list_questions, slowly, details=details)
        self._stays = stays
        self._details = details
        self._gpus: tuple[NvmlGpu, ...] = ()
        self._open = False
        self._retry_at = 0.0
        self._trouble: str | None = SILENT
        self._driver: str | None = None
        self._took: float | None = None
        self._topology: Json | None = None
        self._map_at = 0.0
        self._started = threading.Event()
        self._samples = 0
        self._begun = 0
        """The round of `begin`; 0: none, or the first sample has waited for it."""
        self._hurried = False
        """Whether the next round asks only what cannot come later."""
        self._listener = XidListener()
        self._prompt = PollingThread(self._read, "nvml")
        self._slow = PollingThread(self._read_slow, "nvml-slow")
        self._map = PollingThread(self._draw, "nvml-topology")

    def begin(self) -> None:
        """Starts to read what the first sample returns, and does not wait for it. What a first
        frame does without is left to the second sample."""
        self._hurried = True
        self._begun = self._prompt.ask()

    def sample(self) -> Json:
        """`devices`, `trouble`, `driver`, `took`, `topology`, `events`, `events_trouble`."""
        self._samples += 1
        begun, self._begun = self._begun, 0
        self._listener.ask()
        round_ = begun or self._prompt.ask()
        if not self._started.wait(START_SECONDS if self._samples == 1 else 0):
            return self._describe(time.monotonic())
        until = time.monotonic() + self._patience
        self._prompt.wait(round_, self._patience)
        if self._gpus and not begun:
            self._slow.ask()
            if self._details:
                self._look_at_map(until)
        return self._describe(time.monotonic())

    def close(self) -> None:
        """Ends the threads and closes the driver. Threads that hang end with the process."""
        ended = [thread.stop(END_SECONDS) for thread in (self._listener, self._map, self._slow)]
        if self._prompt.stop(END_SECONDS) and all(ended) and self._open:
            self._open = False
            pynvml.nvmlShutdown()
        self._gpus = ()

    def _describe(self, now: float) -> Json:
        topology_, self._topology = self._topology, None
        return {
            "devices": [gpu.reading(now) for gpu in self._gpus],
            "trouble": self._trouble,
            "driver": self._driver,
            "took": self._took,
            "topology": topology_,
            "events": self._listener.take(),
            "events_trouble": self._listener.trouble,
        }

    def _read(self) -> None:
        began, hurried = time.monotonic(), self._hurried
        self._hurried = False
        count = self._count()
        self._gpus = tuple(
            self._gpus[index]
            if index < len(self._gpus)
            else NvmlGpu(index, partial(self._questions, among=count))
            for index in range(count)
        )
        self._started.set()
        awake = [gpu for gpu in self._gpus if gpu.wake()]
        for wanted in (_soonest,) if hurried else (_always, _now_and_then):
            for gpu in awake:
                if self._prompt.over:
                    return
                gpu.put(began, wanted)
        self._took = time.monotonic() - began
        if self._stays or self._samples > 1:  # a single sample is too short to receive events
            handles = enumerate(gpu.handle for gpu in self._gpus)
            self._listener.listen(
                {index: handle for index, handle in handles if handle is not None}
            )

    def _read_slow(self) -> None:
        for gpu in self._gpus:
            if self._slow.over:
                return
            gpu.put(time.monotonic(), _slowly_answered)

    def _look_at_map(self, until: float) -> None:
        now = time.monotonic()
        if now >= self._map_at:
            self._map_at = now + MAP_SECONDS
            round_ = self._map.ask()
            if self._samples == 1:
                self._map.wait(round_, max(0.0, until - now))

    def _draw(self) -> None:
        self._topology = query_topology([gpu.handle for gpu in self._gpus])

    def _count(self) -> int:
        if not self._open and time.monotonic() < self._retry_at:
            return 0
        try:
            if not self._open:
                pynvml.nvmlInit()
                self._open = True
                self._driver = _driver()
            count = int(pynvml.nvmlDeviceGetCount())
        except pynvml.NVMLError as error:
            self._open = False
            absent = error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
            self._retry_at = time.monotonic() + (LOOK_SECONDS if absent else RETRY_SECONDS)
            self._trouble = explain_no_devices(error)
            return 0
        self._trouble = None if count else "the NVIDIA driver shows no GPU"
        return count


def _always(question: Question) -> bool:
    """Also the identity of a device, before it may be lost."""
    return not question.slow and question.every in (0, ONCE)


def _now_and_then(question: Question) -> bool:
    return not question.slow and question.every not in (0, ONCE)


def _soonest(question: Question) -> bool:
    return not question.slow and not question.later


def _slowly_answered(question: Question) -> bool:
    return question.slow


def _driver() -> str | None:
    try:
        version: Any = pynvml.nvmlSystemGetDriverVersion()
    except pynvml.NVMLError:
        return None
    return version.decode("utf-8", "replace") if isinstance(version, bytes) else str(version)
