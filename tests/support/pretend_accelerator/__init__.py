"""A device that computes at once and takes its time afterwards: `torch.device("pretend")`.

`load()` builds it against torch's own headers and registers it in this process. Then tensors,
models, `torch.pretend` (streams, events) and the process group of backend `pretend` work as on a
GPU with NCCL: the host queues work and runs ahead, autograd runs backward passes in a thread of the
device, and streams wait for collectives. What an operation computes is real; how long it takes is
charged to its stream.

A collective moves nothing: it takes as long as it would, and leaves each rank its own values.
"""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

SOURCE = Path(__file__).with_name("device.cpp")
COMPLETE = "complete"
"""The file that is made once the compiler is done."""


def load(folder: str | os.PathLike[str]) -> ModuleType:
    """The device, registered as `torch.pretend`. Compiled in `folder` if it is not there yet, which
    takes a minute; of several processes one compiles. Raises RuntimeError with the compiler's
    output."""
    from . import pretend_runtime

    digest = hashlib.sha256(SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:16]
    target = Path(folder) / f"pretend_device_{digest}"
    native = _import_library(target) if (target / COMPLETE).exists() else _compile(target)
    return pretend_runtime.register(native)


def time_every_turn() -> None:
    """Lets the probe, if it is in this process, time every turn. This device's events cost the host
    more than a GPU's: within the usual limit few turns would be timed, and jobs last long."""
    clock: Any = sys.modules.get("_mgpu_probe.device_clock")
    if clock is not None:
        clock.FREE_NS = 10**18


def _compile(target: Path) -> Any:
    from torch.utils import cpp_extension  # takes a second

    target.mkdir(parents=True, exist_ok=True)
    scripts = sysconfig.get_path("scripts")  # of this environment: ninja is there
    if scripts not in os.environ["PATH"].split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join((scripts, os.environ["PATH"]))
    native = cpp_extension.load(
        name=target.name,
        sources=[str(SOURCE)],
        build_directory=str(target),
        extra_cflags=["-O1"],
    )
    (target / COMPLETE).touch()
    return native


def _import_library(target: Path) -> ModuleType:
    """What was compiled before, without asking the compiler again."""
    spec = spec_from_file_location(target.name, target / f"{target.name}.so")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_autoload(folder: Path, build: Path, ns_per_byte: float) -> Path:
    """A folder for PYTHONPATH with which every program that imports torch finds the device, as
    torch finds those of other vendors: by an entry point of an installed package. Its operations
    take longer by the size of their tensors."""
    package = folder / "pretend_device-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: pretend-device\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(
        "[torch.backends]\npretend = pretend_autoload:start\n"
    )
    root = Path(__file__).parents[3]
    (folder / "pretend_autoload.py").write_text(
        "import sys\n"
        "def start():\n"
        f"    sys.path.append({str(root)!r})\n"
        f"    from {__name__} import load\n"
        f"    load({str(build)!r}).native.set_ns_per_byte({ns_per_byte})\n"
    )
    return folder
