"""What a recording could not see about how its processes ended, and how to enable it."""

from __future__ import annotations

from collections.abc import Container, Iterable
from pathlib import Path

from mgpu_doctor.case.box_files import part_folders
from mgpu_doctor.case.device_samples import DeviceSample
from mgpu_doctor.case.ending_records import Ending, ending_of
from mgpu_doctor.case.model import Gap, Unexamined
from mgpu_doctor.case.untrusted_json import read_object
from mgpu_doctor.recording import layout

KERNEL_LOG = "kernel log"


def read_endings(
    hosts: Iterable[Path], until: float | None = None, *, root: Path
) -> tuple[tuple[Ending, ...], tuple[Unexamined, ...]]:
    """The hosts' ending records, and their gaps. A host without the file (an older recording) has
    none. `until`: records written later are left out (replay)."""
    endings: list[Ending] = []
    gaps: dict[str, Unexamined] = {}
    parts = ((host, part) for host in hosts for _, part in part_folders(root, host))
    for host, part in parts:
        try:
            ending = ending_of(host.name, read_object(part / layout.ENDING, root=root))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            reason = f"{host.name}: {error.strerror if isinstance(error, OSError) else error}"
            remedy = "record the job again; failures were judged without it"
            gaps.setdefault("file", Unexamined(layout.ENDING, reason, remedy))
            continue
        if until is not None and (ending.at is None or ending.at > until):
            continue
        endings.append(ending)
        if ending.log_trouble is not None:
            gaps.setdefault("log", _no_log(ending.log_trouble))
    return tuple(endings), tuple(gaps.values())


def _no_log(trouble: str) -> Unexamined:
    return Unexamined(
        KERNEL_LOG,
        trouble,
        "`sudo sysctl kernel.dmesg_restrict=0` or CAP_SYSLOG (in a container also /dev/kmsg), or "
        "check yourself: `dmesg -T | grep -i 'killed process'` on the host",
        Gap.KERNEL_LOG,
    )


def unread_log(samples: Iterable[DeviceSample], gaps: Container[Gap | None]) -> list[Unexamined]:
    """Reports that the kernel's log could not be read for XIDs: once for all hosts, and not if it
    is among `gaps` already."""
    newest = {sample.host: sample for sample in samples if sample.devices}
    deaf = [gap for gap in newest.values() if gap.kernel_log_trouble is not None]
    if not deaf or Gap.KERNEL_LOG in gaps:
        return []
    reason = deaf[0].kernel_log_trouble or ""
    unheard = next(
        (device_sample.events_trouble for device_sample in deaf if device_sample.events_trouble),
        None,
    )
    left = f"nor from the driver: {unheard}" if unheard else "only those the driver reports (NVML)"
    return [
        Unexamined(
            KERNEL_LOG,
            f"{reason}; so it shows no XIDs of GPUs, {left}",
            "`sudo sysctl kernel.dmesg_restrict=0` or CAP_SYSLOG (in a container also /dev/kmsg), "
            "or check yourself: `dmesg -T | grep NVRM` on the host",
            Gap.KERNEL_LOG,
        )
    ]
