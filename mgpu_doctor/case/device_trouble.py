"""What could not be seen of GPUs' errors."""

from __future__ import annotations

from collections.abc import Container, Iterable

from mgpu_doctor.case.ending_files import KERNEL_LOG
from mgpu_doctor.case.gpu import DeviceSample
from mgpu_doctor.case.model import Unexamined


def unread_log(samples: Iterable[DeviceSample], told: Container[str]) -> list[Unexamined]:
    """Where the kernel's log could not be read for XIDs, once for all hosts, and not at all where
    it is among `told` already."""
    newest = {sample.host: sample for sample in samples if sample.devices}
    deaf = [one for one in newest.values() if one.kernel_log_trouble is not None]
    if not deaf or KERNEL_LOG in told:
        return []
    reason = deaf[0].kernel_log_trouble or ""
    unheard = next((one.events_trouble for one in deaf if one.events_trouble), None)
    left = f"nor from the driver: {unheard}" if unheard else "only those the driver reports (NVML)"
    return [
        Unexamined(
            KERNEL_LOG,
            f"{reason}; so XIDs of GPUs are not known from there, {left}",
            "`sudo sysctl kernel.dmesg_restrict=0` or CAP_SYSLOG (in a container also /dev/kmsg), "
            "or look yourself: `dmesg -T | grep NVRM` on the host",
        )
    ]
