"""Judges the GPUs of a machine while no job is shown: lost, slowed down, or with errors.

The rules are loaded only when a sample looks suspicious, so that watching healthy GPUs stays
cheap."""

from __future__ import annotations

import os
import time
from collections import deque
from typing import TYPE_CHECKING

from mgpu_doctor.live.frame_source import Pace
from mgpu_doctor.rules.settings import DEFAULTS, Settings

if TYPE_CHECKING:
    from mgpu_doctor.case.device_samples import Device, DeviceSample
    from mgpu_doctor.findings import Finding

FEWEST = 2
"""Samples before which nothing is judged: every rule needs as many."""
NEWEST = 30
"""Samples that are kept and judged."""
JUDGING = 0.002
"""Share of a core for judging them."""
UNSUPPORTED = "not supported"
"""In the words of a device that answers, and does not have what was asked for."""
LONGEST_UNJUDGED = 10.0
"""Seconds after which suspicious GPUs are judged again in any case."""


class GpuWatch:
    """For one thread."""

    def __init__(self, settings: Settings = DEFAULTS) -> None:
        self._settings = settings
        self._samples: deque[DeviceSample] = deque(maxlen=NEWEST)
        self._suspicious: deque[bool] = deque(maxlen=NEWEST)
        """Of each sample: whether one of its devices may be defective."""
        self._pace = Pace(time.monotonic, time.thread_time, LONGEST_UNJUDGED, JUDGING)
        self._found: tuple[Finding, ...] = ()
        self._judged = False

    @property
    def samples(self) -> tuple[DeviceSample, ...]:
        """The newest samples, oldest first."""
        return tuple(self._samples)

    def add(self, sample: DeviceSample | None) -> None:
        """Keeps a sample; one that was kept already is ignored."""
        if sample is not None and (not self._samples or sample is not self._samples[-1]):
            self._samples.append(sample)
            self._suspicious.append(any(map(is_suspicious, sample.devices)))
            self._judged = False

    def judge(self) -> tuple[Finding, ...]:
        """The findings at warning or worse, the most severe first; as old as `LONGEST_UNJUDGED`."""
        if self._judged or len(self._samples) < FEWEST:
            return self._found
        if not self._is_suspicious():
            self._found = ()
        elif self._pace.due():
            self._pace.begin()
            self._found = self._find()
            self._pace.end()
        self._judged = True
        return self._found

    def _is_suspicious(self) -> bool:
        """Whether a device may be defective, or is no longer listed."""
        if len({len(sample.devices) for sample in self._samples}) > 1:
            return True
        return any(self._suspicious)

    def _find(self) -> tuple[Finding, ...]:
        from mgpu_doctor.case.placeholders import case_of_machine
        from mgpu_doctor.diagnosis import diagnose
        from mgpu_doctor.findings import Severity

        case = case_of_machine(self._samples[-1].host or os.uname().nodename, self._samples)
        findings = diagnose(case, self._settings).findings
        return tuple(found for found in findings if found.severity is not Severity.INFO)


def is_suspicious(device: Device) -> bool:
    """Whether a rule may have something to say about a device."""
    from mgpu_doctor.case.device_samples import HARD_CLOCK_REASONS

    ecc, pcie = device.ecc, device.pcie
    trouble = device.trouble or UNSUPPORTED
    return bool(
        (UNSUPPORTED not in trouble and device.utilization is None)
        or {*(device.clock_reasons or ())} & {*HARD_CLOCK_REASONS}
        or (ecc is not None and (ecc.uncorrected or ecc.pending or ecc.failed))
        or any(link.up is False for link in device.nvlinks)
        or (pcie is not None and (device.utilization or 0) >= 0.5 and pcie.width != pcie.width_most)
    )
