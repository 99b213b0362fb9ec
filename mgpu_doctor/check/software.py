"""What is installed in this Python, told by its metadata: nothing of it is imported."""

from __future__ import annotations

import re
import sys

from mgpu_doctor.check.model import Check, Level, Machine, Result

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


def frameworks(machine: Machine) -> Result:
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


def collectives(machine: Machine) -> Result:
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


CHECKS = (
    Check("frameworks", "frameworks", frameworks),
    Check("collectives", "collectives", collectives),
)
