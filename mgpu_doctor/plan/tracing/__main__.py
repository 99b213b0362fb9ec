"""Loads torch or TensorFlow, whichever the target is about, and forks what answers requests:
`python -m mgpu_doctor.plan.tracing TARGET`.

The user's code is loaded in those: what it computes or starts would not survive a fork.
"""

from __future__ import annotations

import gc
import os
import resource
import socket
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mgpu_doctor.analysis.memory.settings import Framework
from mgpu_doctor.plan import wire
from mgpu_doctor.plan.tracing import pointing
from mgpu_doctor.plan.tracing.children import children

Tracer = Callable[..., wire.Answer]
ROOM_FAKE = 2 << 30
"""Bytes that tracing may take beyond torch itself; a real step may take half of what is free."""


SWITCHES = {
    "KERAS_BACKEND": "tensorflow",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_CPU_ALLOCATOR_USE_BFC": "1",  # the allocator that it has for GPUs (graphs/running.py)
    "TF_ENABLE_ONEDNN_OPTS": "0",  # its kernels keep what no GPU's do
}
"""What TensorFlow reads when it is loaded."""


def main(target: str) -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # nothing here may take a context on a GPU
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    gc.disable()  # looking for garbage takes a sixth of the time in which torch is loaded
    about = pointing.framework(target)
    try:
        trace: Tracer | pointing.TargetError = _tracer(about)
    except ImportError as error:
        why = f"{about.value} is needed to trace a step and cannot be imported ({error})."
        trace = pointing.TargetError(why)
    gc.freeze()  # what is there already is shared with the children, as long as nobody looks at it
    if (connection := children()) is not None:
        _answer(connection, target, about, trace)


def _answer(
    connection: socket.socket,
    target: str,
    about: Framework,
    trace: Tracer | pointing.TargetError,
) -> None:
    """Requests, until there are none."""
    requests = connection.makefile("r", encoding="utf-8")
    function: Callable[[], Any] | None = None
    for line in requests:
        settings, real = wire.read_request(line)
        if real:
            gc.collect()
        _bound(ROOM_FAKE if not real else _free() // 2)
        warnings.simplefilter("ignore")
        try:
            if isinstance(trace, pointing.TargetError):
                raise trace
            function = function or pointing.find(target)
            answer: wire.Answer | wire.Refusal = trace(function, settings, real=real)
        except pointing.TargetError as error:
            answer = wire.Refusal(str(error), True, framework=about)
        except pointing.StepError as error:
            answer = wire.Refusal(str(error), False, error.parameters, about)
        connection.sendall(wire.write_answer(answer).encode() + b"\n")


def _tracer(about: Framework) -> Tracer:
    """Raises ImportError where the framework is not installed."""
    if about is Framework.TENSORFLOW:
        os.environ |= SWITCHES
        from mgpu_doctor.plan.graphs import step as graphs

        return graphs.trace
    from mgpu_doctor.plan.tracing import step, target

    target.refuse_groups()
    step.load()
    return step.answer


def _bound(more: int) -> None:
    """Let the process's data grow by so many bytes, as of now."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    now = _kilobytes("/proc/self/status", "VmData:")
    if now is not None and more:
        wanted = (now << 10) + more
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _free() -> int:
    return (_kilobytes("/proc/meminfo", "MemAvailable:") or 0) << 10


def _kilobytes(file: str, key: str) -> int | None:
    try:
        lines = Path(file).read_text(encoding="ascii", errors="replace").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(key))
    except (OSError, ValueError, IndexError, StopIteration):
        return None


if __name__ == "__main__":
    main(sys.argv[1])
