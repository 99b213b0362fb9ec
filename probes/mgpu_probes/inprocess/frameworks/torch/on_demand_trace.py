"""Traces some steps by torch's own profiler, on request (`mgpu-doctor trace`).

The request comes through the rank's socket. The trace begins and ends in the training thread,
between two steps, so that all ranks trace the same steps. It uses `torch.autograd.profiler`:
`torch.profiler` imports torch's compiler at its start, which would stop the job for seconds. A
process that exits or forks while the profiler is on crashes or leaks memory, so both end the trace
first.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import resource
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from types import ModuleType
from typing import Any

import torch

from ... import masked_threads, worker_server
from ...probe_context import ProbeContext
from . import cuda_captures, flight_recorder_handlers
from .torch_support import wrap

probe: ProbeContext

IDLE, WAITING, TRACING, DONE, FAILED = "idle", "waiting", "tracing", "done", "failed"
MOST_STEPS = 1_000
MOST_SECONDS = 60.0
PATIENCE = 30.0
"""Seconds after its deadline at which a trace is ended within a step: a step with an evaluation may
last hours."""
MOST_GROWTH = 2 << 20
"""KiB by which the process may grow while it is traced (`ru_maxrss`, getrusage(2))."""
LEAST_FREE = 512 << 20
"""Free bytes that the disk of the file must have; an event takes 150 to 350 bytes."""
SUFFIX = ".trace.json"


class Tracing:
    """The state of the requested trace, of which there is at most one. The worker server's thread
    calls the first group of methods, the training thread the second."""

    def __init__(self) -> None:
        self.state = IDLE
        self.why: str | None = None
        """Why it FAILED; if DONE, why there are fewer steps than requested."""
        self.steps = 0
        """Steps traced so far."""
        self._at = self._most = 0
        self._most_seconds = self._until = 0.0
        self._cancelled = False
        self._largest = 0
        self._profile: Any = None
        self._mark: Any = None
        self._pending_call: Any = None

    # --- called by the worker server's thread -------------------------------------------------

    def describe(self) -> bytes:
        """The reply to a request, as JSON. `told` (part of the protocol): steps of the rank so
        far."""
        return json.dumps(
            {
                "rank": probe.rank,
                "told": probe.recorded,
                "state": self.state,
                "why": self.why,
                "steps": self.steps,
            }
        ).encode()

    def begin(self, request: Mapping[str, int]) -> bytes:
        """Requests a trace. `at`: the step before which it begins; `steps`, `milliseconds`:
        limits."""
        if self.state == TRACING or (self.state == WAITING and not self._cancelled):
            return json.dumps({"state": FAILED, "why": "it is being traced already"}).encode()
        self._at = request.get("at", 0)
        self._most = min(max(1, request.get("steps", 1)), MOST_STEPS)
        self._most_seconds = min(request.get("milliseconds", 1000) / 1000, MOST_SECONDS)
        self.steps, self._cancelled = 0, False
        self.why = self._refusal()
        self.state = FAILED if self.why else WAITING
        if self.why is None:
            probe.every_step = self._step
        return self.describe()

    def cancel(self) -> bytes:
        """Cancels the request: a running trace ends with the current step, and one that has been
        written is removed."""
        self._cancelled = True
        if self.state == DONE:
            self._remove()
        return self.describe()

    def _remove(self) -> None:
        with suppress(OSError):
            os.unlink(self._path())
        self.why, self.state = "it was cancelled", FAILED

    @staticmethod
    def _path() -> str:
        assert probe.box is not None
        return f"{probe.box.path.rpartition('.')[0]}{SUFFIX}"

    def _refusal(self) -> str | None:
        if not probe.on or probe.box is None:
            return "its probe has switched itself off"
        if probe.owner != threading.main_thread().ident:
            return "its training runs in another thread than the main one"
        room = os.statvfs(os.path.dirname(probe.box.path))
        free = room.f_bavail * room.f_frsize
        if free < LEAST_FREE:
            wanted = f"{LEAST_FREE >> 20} are wanted"
            return f"the disk of its recording has {free >> 20} MiB left, and {wanted}"
        return None

    # --- called by the training thread --------------------------------------------------------

    def _step(self) -> None:
        try:
            self._advance()
        except Exception as trouble:
            self._fail(f"torch's profiler failed: {type(trouble).__name__}: {trouble}"[:300])

    def _advance(self) -> None:
        if not probe.on:
            self.end_early("its probe switched itself off")
            probe.every_step = None
        elif self._cancelled:
            self._fail("it was cancelled")
        elif _is_capturing():
            return  # starting or ending the profiler would invalidate the capture
        elif self.state == WAITING:
            if probe.recorded >= self._at:
                self._start()
        elif self.state == TRACING:
            self._close_mark()
            self.steps += 1
            if self.steps >= self._most:
                self._finish(None)
            elif time.monotonic() >= self._until:
                self._finish("the time was over")
            elif resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > self._largest:
                self._finish("the trace grew too large")
            else:
                self._open_mark()

    def _start(self) -> None:
        if torch._C._autograd._profiler_enabled():
            self._fail("the script's own profiler is at work")
            return
        if self._pending_call is None:
            self._pending_call = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(
                _end_overdue_trace
            )
            atexit.register(self.end_early, "the process ended")
            os.register_at_fork(before=lambda: self.end_early("the process forked another"))
        on_device = torch.cuda.is_initialized()  # any other query would initialize CUDA
        profile = torch.autograd.profiler.profile(
            use_device="cuda" if on_device else None, use_kineto=True
        )
        self._largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss + MOST_GROWTH
        self._profile = profile
        profile.__enter__()
        self.state = TRACING
        torch._C._autograd._add_metadata_json("distributedInfo", json.dumps(_distributed()))
        self._until = time.monotonic() + self._most_seconds
        self._open_mark()
        masked_threads.start(self._watch, profile)

    def _open_mark(self) -> None:
        self._mark = torch.autograd.profiler.record_function(f"ProfilerStep#{probe.recorded}")
        self._mark.__enter__()

    def _close_mark(self) -> None:
        mark, self._mark = self._mark, None
        if mark is not None:
            mark.__exit__(None, None, None)

    def _finish(self, why: str | None) -> None:
        profile, self._profile = self._profile, None
        probe.every_step = None
        profile.__exit__(None, None, None)
        path = self._path()
        profile.export_chrome_trace(path)
        os.chmod(path, 0o600)  # until here only the folder's mode keeps other users out
        if _is_whole(path):
            self.why, self.state = why, DONE
            if self._cancelled:  # while it was written
                self._remove()
        else:
            os.unlink(path)
            self.why, self.state = "the file could not be written whole: is the disk full?", FAILED

    def _fail(self, why: str) -> None:
        probe.every_step = None
        profile, self._profile = self._profile, None
        if profile is not None and self.state == TRACING:
            with suppress(Exception):
                self._close_mark()
                profile.__exit__(None, None, None)
        self.why, self.state = why, FAILED

    def end_early(self, why: str) -> None:
        """Ends a running trace and keeps it, before something that the profiler would not
        survive."""
        if self.state != TRACING or threading.get_ident() != probe.owner or self._profile is None:
            return
        try:
            self._close_mark()
            self._finish(why)
        except Exception as trouble:
            self._fail(f"{why}, and the profiler failed: {type(trouble).__name__}"[:300])

    def _watch(self, profile: Any) -> None:
        """Runs in a thread of its own, and ends the trace when it is overdue: it has Python call
        `_end_overdue_trace` in the main thread, between two bytecodes."""
        time.sleep(self._most_seconds + PATIENCE)
        while self._profile is profile:
            ctypes.pythonapi.Py_AddPendingCall(self._pending_call, None)
            time.sleep(1)

    def yield_to_profiler(self, args: tuple[Any, ...], _: dict[str, Any]) -> None:
        """Ends the trace before the script's own profiler starts: only one profiler can be on."""
        if args and args[0] is not self._profile:
            self.end_early("the script's own profiler began")


def _distributed() -> dict[str, Any]:
    distributed = torch.distributed
    initialized = distributed.is_available() and distributed.is_initialized()
    return {
        "rank": max(0, probe.rank),
        "world_size": max(1, probe.world_size),
        "backend": str(distributed.get_backend()) if initialized else None,
    }


def _is_whole(path: str) -> bool:
    """Whether the file ends with `}`: Kineto does not report a full disk."""
    with open(path, "rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 64))
        return file.read().rstrip().endswith(b"}")


def _is_capturing() -> bool:
    with cuda_captures.lock:
        return cuda_captures.is_capturing()


tracing = Tracing()


def _end_overdue_trace(_: object) -> int:
    """Ends the trace, unless a CUDA graph is being captured, which that would invalidate."""
    if not _is_capturing():
        tracing.end_early("no step came to its end")
    return 0


def patch(profiler: ModuleType) -> None:
    """Adds the request handlers to the worker server, and wraps the start of the user's
    profiler."""
    wrap(profiler.profile, "_prepare_trace", tracing.yield_to_profiler, _ignore)
    worker_server.handlers["trace_state"] = tracing.describe
    worker_server.handlers["trace_cancel"] = tracing.cancel
    worker_server.commands["trace_begin"] = tracing.begin
    if flight_recorder_handlers.listen not in probe.on_step:
        probe.on_step.append(flight_recorder_handlers.listen)


def _ignore(_: Any, __: Any) -> None:
    """Nothing is left to do after the call."""
