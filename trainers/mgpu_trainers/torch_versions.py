"""What trainers need of PyTorch that not every version has, known before anything starts.

The version comes from the installed package's metadata, as importing torch takes seconds. Imports
no framework.
"""

import re
from collections.abc import Mapping, Sequence
from enum import Enum
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

Version = tuple[int, int]


class _Part(NamedTuple):
    name: str
    since: Version
    """The first version with which it works."""
    on_cpus: bool = False
    """Only ranks on CPUs need it."""


class TorchPart(Enum):
    """A part of PyTorch, and since when there is one that the trainers can use.

    By the history of its source; `make matrix` runs the trainers with some versions
    (docs/compatibility.md).
    """

    SELECTIVE_CHECKPOINTING = _Part("torch.utils.checkpoint.CheckpointPolicy", (2, 5))
    FULLY_SHARD = _Part("torch.distributed.fsdp.fully_shard", (2, 6))
    STAGE_SHAPES = _Part("pipeline stages that find their shapes by themselves", (2, 6))
    """pytorch pull request 136912."""
    GLOO_AVERAGE = _Part("averages in gloo", (2, 8), on_cpus=True)
    """pytorch pull request 149781; `fully_shard` averages gradients."""
    GLOO_BATCHES = _Part("pipelines over gloo", (2, 8), on_cpus=True)
    """pytorch pull request 152938: before, batched sends and receives were not all waited for."""
    GLOO_OWN_STAGES = _Part("two successive stages on one rank over gloo", (2, 12), on_cpus=True)
    """Before, `ScheduleZBVZeroBubble` sends to its own rank, which gloo cannot: until 2.9 batches,
    until 2.11 what warms up the connections. It fails with 2.8 and 2.10, and works with 2.13."""


OPTION_PARTS: Mapping[tuple[str, str], TorchPart] = {
    ("checkpointing", "selective"): TorchPart.SELECTIVE_CHECKPOINTING,
    ("schedule", "zbv"): TorchPart.GLOO_OWN_STAGES,
}
"""What the value of an option needs, by the option's name and the value."""

_GPU_FILES = ("nvidia[0-9]*", "kfd")
"""Devices of NVIDIA's and AMD's drivers."""


def find_lack(
    parts: Sequence[TorchPart],
    values: Mapping[str, object],
    *,
    version: str | None,
    on_cpus: bool,
) -> str | None:
    """What torch of this version lacks, as the rest of a sentence; None: nothing, or unknown.

    `parts`: what the trainer needs; `values`: its options, of which some need more.
    """
    number = read_version(version or "")
    if number is None:
        return None
    asked = [part for key, part in OPTION_PARTS.items() if str(values.get(key[0])) == key[1]]
    lacking = [
        part.value
        for part in (*parts, *asked)
        if number < part.value.since and (on_cpus or not part.value.on_cpus)
    ]
    if not lacking:
        return None
    newest = max(lacking, key=lambda part: part.since)
    first = ".".join(map(str, newest.since))
    where = " on CPUs" if newest.on_cpus else ""
    return f"needs torch {first} or newer{where}, for {newest.name}; torch {version} is installed"


def read_version(text: str) -> Version | None:
    """Major and minor number of a version such as 2.4.1+cu121."""
    numbers = re.match(r"(\d+)\.(\d+)", text)
    return (int(numbers[1]), int(numbers[2])) if numbers else None


def installed_version() -> str | None:
    """Of torch; None: unknown, as for a source tree on the path."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None


def trains_on_cpus(device: object, devices: Path = Path("/dev")) -> bool:
    """Whether `--device` chooses CPUs, as far as the drivers' device files show."""
    if device in ("cpu", "cuda"):
        return device == "cpu"
    return not any(any(devices.glob(pattern)) for pattern in _GPU_FILES)
