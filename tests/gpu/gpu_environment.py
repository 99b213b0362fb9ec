"""What the GPU tests run on: the GPU, its driver and torch, or the reason why there is none."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDER_VARIABLE = "MGPU_DOCTOR_TEST_GPU_FOLDER"
"""Where figures and recordings go."""
RECORDED = ROOT / "tests" / "recorded" / "gpu"
_DESCRIBE = """
import json, sys
try:
    import torch
except ImportError as error:
    sys.exit(f"this Python has no PyTorch ({error})")
if not torch.cuda.is_available():
    sys.exit(f"PyTorch {torch.__version__} found no GPU on this machine")
properties = torch.cuda.get_device_properties(0)
print(json.dumps({
    "name": properties.name,
    "memory_bytes": properties.total_memory,
    "multiprocessors": properties.multi_processor_count,
    "capability": f"{properties.major}.{properties.minor}",
    "torch": torch.__version__,
    "cuda": torch.version.cuda,
    "hip": torch.version.hip,
    "nccl": ".".join(map(str, torch.cuda.nccl.version())),
    "python": sys.version.split()[0],
}))
"""


class NoGpuError(Exception):
    """There is no GPU to test on; the message says why in one sentence."""


@cache
def describe_gpu() -> dict[str, Any]:
    """The first GPU, its driver and torch. Raises NoGpuError.

    A process of its own asks: this one, which starts jobs, must not have opened the GPU."""
    ended = subprocess.run(
        [sys.executable, "-c", _DESCRIBE], capture_output=True, text=True, check=False
    )
    if ended.returncode:
        reason = (ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"])[-1]
        raise NoGpuError(f"{reason}: the GPU tests did not run.")
    device: dict[str, Any] = json.loads(ended.stdout)
    return device | {"driver": _driver()}


def _driver() -> str | None:
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"\b(\d{3}\.\d+(?:\.\d+)?)\b", text)
    return found[1] if found else None


def folder_of(device: Mapping[str, Any]) -> Path:
    """Where the figures and recordings of this device, driver and torch are kept."""
    words = (device["name"], device["driver"] or "unknown-driver", "torch", device["torch"])
    return RECORDED / re.sub(r"[^a-z0-9.]+", "-", " ".join(words).lower())


def importable(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with the repository's packages on PYTHONPATH: the Python that holds a torch
    for GPUs may not have them installed."""
    ours = [str(ROOT / part) for part in ("", "probes", "trainers")]
    theirs = environment.get("PYTHONPATH")
    paths = [str(Path(path)) for path in ours] + ([theirs] if theirs else [])
    return {**environment, "PYTHONPATH": os.pathsep.join(paths)}
