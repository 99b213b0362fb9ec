"""Whether the GPUs can be read."""

from __future__ import annotations

from collections import Counter

from mgpu_probes.outside.devices import Devices

from mgpu_doctor.check.model import Check, Level, Machine, Result

NVIDIA = "0x10de"
"""NVIDIA's vendor number on the PCI bus (pci.ids)."""
_DISPLAY = ("0x03", "0x12")
"""Classes of PCI devices: display controllers, processing accelerators."""

PATIENCE = 10.0
"""Seconds for a driver to answer everything once."""


def gpus(machine: Machine) -> Result:
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


def _without(machine: Machine, trouble: str) -> Result:
    if _on_the_bus(machine):
        remedy = (
            "install the NVIDIA driver, or reboot if it was updated; in a container: start it with "
            "`--gpus all` (nvidia-container-toolkit)"
        )
        return Result(Level.FAIL, f"there is an NVIDIA GPU, but {trouble}", remedy)
    return Result(
        Level.NOTE, "no NVIDIA GPU in this machine: jobs on CPUs are examined all the same"
    )


def _on_the_bus(machine: Machine) -> bool:
    for folder in sorted((machine.root / "sys/bus/pci/devices").glob("*")):
        path = f"sys/bus/pci/devices/{folder.name}"
        vendor, kind = machine.text(f"{path}/vendor"), machine.text(f"{path}/class")
        if vendor == NVIDIA and (kind or "").startswith(_DISPLAY):
            return True
    return (machine.root / "proc/driver/nvidia/version").exists()


CHECKS = (Check("gpus", "GPUs", gpus),)
