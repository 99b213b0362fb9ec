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
"""Seconds for a driver to answer everything once."""


def gpus(machine: CheckedMachine) -> Result:
    """NVML, and each device that it shows."""
    devices = Devices(patience=PATIENCE)
    try:
        sample = devices.sample()
    finally:
        devices.close()
    if sample["trouble"]:
        return _without(machine, sample["trouble"])
    broken = [one for one in sample["devices"] if one["trouble"] and one["utilization"] is None]
    if broken:
        first = broken[0]
        said = f"{len(broken)} of {len(sample['devices'])} cannot be read: GPU {first['index']}: "
        return Result(
            Level.FAIL, said + first["trouble"], "look at `nvidia-smi` and `dmesg | grep -i xid`"
        )
    names = Counter(one["name"] or "unnamed GPU" for one in sample["devices"])
    told = ", ".join(f"{many} × {name}" for name, many in names.items())
    partial = sorted({one["trouble"] for one in sample["devices"] if one["trouble"]})
    return Result(Level.PASS, f"{told}; {partial[0]}" if partial else told)


def _without(machine: CheckedMachine, trouble: str) -> Result:
    if _on_the_bus(machine):
        remedy = (
            "install the NVIDIA driver, or reboot if it was updated; in a container: start it with "
            "`--gpus all` (nvidia-container-toolkit)"
        )
        return Result(Level.FAIL, f"there is an NVIDIA GPU, but {trouble}", remedy)
    return Result(
        Level.NOTE, "no NVIDIA GPU in this machine: jobs on CPUs are examined all the same"
    )


def _on_the_bus(machine: CheckedMachine) -> bool:
    for folder in sorted((machine.root / "sys/bus/pci/devices").glob("*")):
        path = f"sys/bus/pci/devices/{folder.name}"
        vendor, kind = machine.text(f"{path}/vendor"), machine.text(f"{path}/class")
        if vendor == NVIDIA and (kind or "").startswith(_DISPLAY):
            return True
    return (machine.root / "proc/driver/nvidia/version").exists()


GPU_CHECKS = (Check("gpus", "GPUs", gpus),)

OLDEST = {"torch": (2, 4), "tensorflow": (2, 16)}
"""What the doctor is tested with; older ones are examined from outside."""
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
"""Since this release PyTorch has torch._C._distributed_c10d._WorkerServer."""


def frameworks(machine: CheckedMachine) -> Result:
    found = {name: version for name in _NAMES if (version := machine.version(name)) is not None}
    if not found:
        return Result(
            Level.NOTE, f"none in this Python ({sys.executable}): jobs may use another one"
        )
    told = ", ".join(f"{name} {version}" for name, version in found.items())
    for name, oldest in OLDEST.items():
        version = found.get(name) or (found.get("tensorflow-cpu") if name == "tensorflow" else None)
        if version is not None and _numbers(version) < oldest:
            least = ".".join(map(str, oldest))
            return Result(
                Level.WARN,
                f"{told}: steps and phases are not measured in {name} before {least}",
                f"install {name}>={least}; until then jobs are examined from outside",
            )
    return Result(Level.PASS, told)


def collectives(machine: CheckedMachine) -> Result:
    """Whether ranks under `mgpu-doctor run` can be asked for their collectives while they hang."""
    version = machine.version("torch")
    if version is None:
        return Result(Level.NOTE, "no PyTorch in this Python")
    if _numbers(version) < _WORKER_SERVER:
        return Result(
            Level.WARN, "PyTorch before 2.4 cannot be asked while it hangs", "install torch>=2.4"
        )
    return Result(Level.PASS, "jobs under `mgpu-doctor run` can be asked while they hang")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d{1,6}", version)[:2])


SOFTWARE_CHECKS = (
    Check("frameworks", "frameworks", frameworks),
    Check("collectives", "collectives", collectives),
)
