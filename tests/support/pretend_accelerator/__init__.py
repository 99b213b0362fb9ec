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
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils import cpp_extension

SOURCE = Path(__file__).with_name("device.cpp")


def load(folder: str | os.PathLike[str]) -> ModuleType:
    """The device, registered as `torch.pretend`. Compiled in `folder` if it is not there yet, which
    takes a minute; of several processes one compiles. Raises RuntimeError with the compiler's
    output."""
    from . import pretend_runtime

    digest = hashlib.sha256(SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:16]
    target = Path(folder) / f"pretend_device_{digest}"
    target.mkdir(parents=True, exist_ok=True)
    scripts = sysconfig.get_path("scripts")  # of this environment: ninja is there
    if scripts not in os.environ["PATH"].split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join((scripts, os.environ["PATH"]))
    native: Any = cpp_extension.load(
        name=target.name,
        sources=[str(SOURCE)],
        build_directory=str(target),
        extra_cflags=["-O1"],
    )
    return pretend_runtime.register(native)
