"""Checks of GPUs and of installed packages, by their metadata: no framework is imported."""

from __future__ import annotations

import re
import sys
from collections import Counter

from mgpu_probes.outside.devices import Devices

from mgpu_doctor.check.check_result import Check, CheckedMachine, Level, Result

NVIDIA = "0x10de"
"""NVIDIA's vendor number on the PCI bus (pci.ids)."""
_DISPLAY = ("0x03", "0x12")
"""Classes of PCI devices: display controllers, processing accelerators."""

PATIENCE = 10.0
"""Seconds in which a driver must have answered every query once."""


def check_gpus(machine: CheckedMachine) -> Result:
    """Whether NVML can be used, and whether it can read each GPU."""
    devices = Devices(patience=PATIENCE)
    try:
        sample = devices.sample()
    finally:
        devices.close()
    if sample["trouble"]:
        return _explain_missing_gpus(machine, sample["trouble"])
    devices = sample["devices"]
    broken = [gpu for gpu in devices if gpu["trouble"] and gpu["utilization"] is None]
    if broken:
        first = broken[0]
        return Result(
            Level.FAIL,
            f"{len(broken)} of {len(devices)} cannot be read, such as GPU {first['index']}: "
            f"{first['trouble']}",
            "see `nvidia-smi` and `dmesg | grep -i xid`",
        )
    names = Counter(gpu["name"] or "unnamed GPU" for gpu in devices)
    message = ", ".join(f"{count} × {name}" for name, count in names.items())
    if sample["driver"]:
        message += f"; driver {sample['driver']}"
    partial = sorted({gpu["trouble"] for gpu in devices if gpu["trouble"]})
    return Result(Level.PASS, f"{message}; {partial[0]}" if partial else message)


def _explain_missing_gpus(machine: CheckedMachine, trouble: str) -> Result:
    if _has_nvidia_gpu(machine):
        remedy = (
            "install the NVIDIA driver, or reboot if it was updated; start a container with "
            "`--gpus all` (nvidia-container-toolkit)"
        )
        return Result(Level.FAIL, f"this machine has an NVIDIA GPU, but {trouble}", remedy)
    return Result(Level.NOTE, "no NVIDIA GPU in this machine; jobs on CPUs can be examined")


def _has_nvidia_gpu(machine: CheckedMachine) -> bool:
    for folder in sorted((machine.root / "sys/bus/pci/devices").glob("*")):
        path = f"sys/bus/pci/devices/{folder.name}"
        vendor, kind = machine.read_text(f"{path}/vendor"), machine.read_text(f"{path}/class")
        if vendor == NVIDIA and (kind or "").startswith(_DISPLAY):
            return True
    return (machine.root / "proc/driver/nvidia/version").exists()


GPU_CHECKS = (Check("gpus", "GPUs", check_gpus),)

OLDEST = {"torch": (2, 4), "tensorflow": (2, 16)}
"""The oldest versions in which steps are measured."""
_NAMES = (
    "torch",
    "tensorflow",
    "tensorflow-cpu",
    "lightning",
    "accelerate",
    "deepspeed",
    "horovod",
)
_WORKER_SERVER = (2, 4)
"""The first release of PyTorch with torch._C._distributed_c10d._WorkerServer."""


def check_frameworks(machine: CheckedMachine) -> Result:
    """Whether the installed frameworks are recent enough for steps to be measured."""
    installed = {name: version for name in _NAMES if (version := machine.version(name)) is not None}
    if not installed:
        return Result(
            Level.NOTE, f"none in this Python ({sys.executable}); jobs may use another Python"
        )
    message = ", ".join(f"{name} {version}" for name, version in installed.items())
    for name, oldest in OLDEST.items():
        version = installed.get(name)
        if version is None and name == "tensorflow":
            version = installed.get("tensorflow-cpu")
        if version is not None and _numbers(version) < oldest:
            least = ".".join(map(str, oldest))
            return Result(
                Level.WARN,
                f"{message}: steps and phases are measured from {name} {least} on",
                f"install {name}>={least}; until then, jobs are only observed from outside",
            )
    return Result(Level.PASS, message)


def check_collectives(machine: CheckedMachine) -> Result:
    """Whether hung ranks under `mgpu-doctor run` can report their collectives."""
    version = machine.version("torch")
    if version is None:
        return Result(Level.NOTE, "no PyTorch in this Python")
    if _numbers(version) < _WORKER_SERVER:
        return Result(
            Level.WARN,
            "PyTorch before 2.4 cannot report its collectives during a hang",
            "install torch>=2.4",
        )
    return Result(Level.PASS, "jobs under `mgpu-doctor run` report their collectives during a hang")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d{1,6}", version)[:2])


SOFTWARE_CHECKS = (
    Check("frameworks", "frameworks", check_frameworks),
    Check("collectives", "collectives", check_collectives),
)
