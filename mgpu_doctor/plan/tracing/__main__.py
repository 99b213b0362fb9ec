"""Answers requests until there are none: `python -m mgpu_doctor.plan.tracing TARGET`.

Torch or TensorFlow is loaded when the first one comes: whichever the target is about.
"""

from __future__ import annotations

import gc
import os
import resource
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mgpu_doctor.analysis.memory.settings import Framework
from mgpu_doctor.plan import wire
from mgpu_doctor.plan.tracing import pointing

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
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # the user's code must neither read requests
    os.dup2(2, 1)  # nor print among the answers
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # nothing here may take a context on a GPU
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    gc.disable()  # looking for garbage takes a sixth of the time in which torch is loaded
    function: Callable[[], Any] | None = None
    about: Framework | None = None
    for line in requests:
        settings, real = wire.read_request(line)
        about = about or pointing.framework(target)
        try:
            trace = _tracer(about)
        except ImportError as error:
            why = f"{about.value} is needed to trace a step and cannot be imported ({error})"
            answer: wire.Answer | wire.Refusal = wire.Refusal(f"{why}.", True, framework=about)
        else:
            if real:
                gc.collect()
            _bound(ROOM_FAKE if not real else _free() // 2)
            warnings.simplefilter("ignore")
            try:
                function = function or pointing.find(target)
                answer = trace(function, settings, real=real)
            except pointing.TargetError as error:
                answer = wire.Refusal(str(error), True, framework=about)
            except pointing.StepError as error:
                answer = wire.Refusal(str(error), False, error.parameters, about)
        answers.write(wire.write_answer(answer) + "\n")
        answers.flush()


def _tracer(about: Framework) -> Callable[..., wire.Answer]:
    """Raises ImportError where the framework is not installed."""
    if about is Framework.TENSORFLOW:
        os.environ |= SWITCHES
        from mgpu_doctor.plan.graphs import step as graphs

        return graphs.trace
    from mgpu_doctor.plan.tracing import step, target

    target.refuse_groups()
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
