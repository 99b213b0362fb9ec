"""Imports torch or TensorFlow, as the target needs, and forks a process per connection.

    python -m mgpu_doctor.plan.tracing.tracing_server TARGET

The children answer requests. Only they load the user's code: what it computes or starts would not
survive a fork.
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

from mgpu_doctor.analysis.memory.memory_plan import Framework
from mgpu_doctor.plan import tracing_protocol
from mgpu_doctor.plan.tracing import user_function

Tracer = Callable[..., tracing_protocol.Answer]
ROOM_FAKE = 2 << 30
"""Bytes that tracing may use beyond torch itself; a real step may use half of the free memory."""

SWITCHES = {
    "KERAS_BACKEND": "tensorflow",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_CPU_ALLOCATOR_USE_BFC": "1",  # its GPU allocator (graph_run.py)
    "TF_ENABLE_ONEDNN_OPTS": "0",  # its kernels keep buffers that GPU kernels do not
}
"""Environment variables that TensorFlow reads when it is loaded."""


def main(target: str) -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # no GPU context may be created here
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    gc.disable()  # garbage collection takes a sixth of torch's import time
    about = user_function.detect_framework(target)
    try:
        trace: Tracer | user_function.TargetError = _tracer(about)
    except ImportError as error:
        why = f"{about.value} is needed to trace a step and cannot be imported ({error})."
        trace = user_function.TargetError(why)
    # Keeps existing objects shared with the children: collecting would copy their pages.
    gc.freeze()
    if (connection := serve_children()) is not None:
        _answer(connection, target, about, trace)


def _answer(
    connection: socket.socket,
    target: str,
    about: Framework,
    trace: Tracer | user_function.TargetError,
) -> None:
    """Answers requests until there are none."""
    requests = connection.makefile("r", encoding="utf-8")
    function: Callable[[], Any] | None = None
    for line in requests:
        settings, real = tracing_protocol.read_request(line)
        if real:
            gc.collect()
        _bound(ROOM_FAKE if not real else _free() // 2)
        warnings.simplefilter("ignore")
        try:
            if isinstance(trace, user_function.TargetError):
                raise trace
            function = function or user_function.find_function(target)
            answer: tracing_protocol.Answer | tracing_protocol.Refusal = trace(
                function, settings, real=real
            )
        except user_function.TargetError as error:
            answer = tracing_protocol.Refusal(str(error), True, framework=about)
        except user_function.StepError as error:
            answer = tracing_protocol.Refusal(str(error), False, error.parameters, about)
        connection.sendall(tracing_protocol.write_answer(answer).encode() + b"\n")


def _tracer(about: Framework) -> Tracer:
    """Returns the function that traces. Raises ImportError if the framework is not installed."""
    if about is Framework.TENSORFLOW:
        os.environ |= SWITCHES
        from mgpu_doctor.plan.tracing import graph_step as graphs

        return graphs.trace
    from mgpu_doctor.plan.tracing import torch_step

    torch_step.refuse_groups()
    torch_step.load()
    return torch_step.answer


def _bound(more: int) -> None:
    """Lets the process's data grow by `more` bytes from now on."""
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


END = b"end "


def serve_children() -> socket.socket | None:
    """Forks a child for each connection that arrives on standard input, a socket.

    Each connection comes with a file for the child's output. In the child, this returns the
    connection; the parent answers with the child's pid. The answer to `end PID` is the exit code of
    that ended child. In the parent, returns None when the socket is closed.
    """
    control = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    while True:
        asked, given, _, _ = socket.recv_fds(control, 64, 2)
        if not asked:
            return None
        if asked.startswith(END):
            _, status = os.waitpid(int(asked.removeprefix(END)), 0)
            control.sendall(b"%d" % os.waitstatus_to_exitcode(status))
            continue
        connection, printed = given
        begun, begins = os.pipe()
        child = os.fork()
        if not child:
            control.close()
            os.setsid()  # processes that the user's code starts end with it
            os.close(begun)
            os.close(begins)
            os.dup2(printed, 1)
            os.dup2(printed, 2)
            os.close(printed)
            os.dup(connection)  # never closed: its end shows that the process has ended
            return socket.socket(fileno=connection)
        os.close(connection)
        os.close(printed)
        os.close(begins)
        os.read(begun, 1)  # to the end: the session must exist before it can be ended
        os.close(begun)
        control.sendall(b"%d" % child)


if __name__ == "__main__":
    main(sys.argv[1])
