"""A short training on this machine's accelerator that measures its own work on the device.

    python device_workload.py FOLDER

A separate program, so that the doctor does not import torch; it needs nothing but torch. It runs
once
bare and once with the probe, and writes FOLDER/workload.json; where torch's profiler records the
kernels of the device, FOLDER/kernels.json is its trace of a few steps. The work is a stack of
square layers, each of which takes the device at least 0.2 ms, so that the host runs ahead.
"""

from __future__ import annotations

import json
import os
import sys
import time
from itertools import pairwise
from statistics import median
from typing import Any

WORKLOAD, TRACE = "workload.json", "kernels.json"
LEAST_UNIT = 0.2e-3
"""Minimum seconds of one matrix product on the device: much more than its launch."""
SMALLEST, LARGEST = 64, 4096
LAYERS = 6
EXTRA_UNITS = 8
"""Products that a planted fault adds to a step."""
GATE_SECONDS = 0.1
"""Work queued before a gated step: the host must finish the step long before the device."""
MAX_QUEUED = 600
"""Products of a gate. With those of a step, fewer than the 1,024 launches that CUDA queues."""
WARM_UP, CYCLES, PROFILED, GATED = 10, 20, 8, 10
PLAIN, SLOW_FORWARD, SLOW_STREAM, TRACED, GATE = "plain", "forward", "stream", "traced", "gate"
EVENTS, ROUNDS = 256, 9


def plan() -> list[str]:
    """Returns the kind of each step. Plain steps and steps with planted work alternate, so that a
    change of the device's clock affects both equally."""
    return [
        *["warm-up"] * WARM_UP,
        *[PLAIN, SLOW_FORWARD, SLOW_STREAM] * CYCLES,
        *[TRACED] * PROFILED,
        *[GATE] * GATED,
    ]


def find_kind(torch: Any) -> str | None:
    """Returns the kind of torch's accelerator; None if there is none."""
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is not None:  # since torch 2.6
        device = accelerator.current_accelerator()
        return device.type if device is not None and accelerator.is_available() else None
    for kind in ("cuda", "xpu", torch._C._get_privateuse1_backend_name()):
        module = getattr(torch, kind, None)
        if module is not None and getattr(module, "is_available", bool)():
            return str(kind)
    return None


def describe(torch: Any, kind: str, module: Any) -> dict[str, Any]:
    """Returns the device and its driver."""
    name = getattr(module, "get_device_name", None)
    return {
        "kind": kind,
        "name": name() if name else kind,
        "torch": torch.__version__,
        "runtime": torch.version.hip or torch.version.cuda,
    }


class Workload:
    """The training, with its own events around each phase."""

    def __init__(self, torch: Any, kind: str, module: Any) -> None:
        self.torch, self.module, self.device = torch, module, torch.device(kind)
        self.unit_seconds, size = self._measure_unit()
        torch.manual_seed(0)
        self.left = torch.randn(size, size, device=self.device)
        self.result = torch.empty_like(self.left)
        layers = [torch.nn.Linear(size, size) for _ in range(LAYERS)]
        self.model = torch.nn.Sequential(*layers).to(self.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-6)
        self.side = module.Stream()
        self.steps: list[dict[str, Any]] = []
        self.trouble: str | None = None
        """Why no trace was taken."""
        self._profile: Any = None

    def _event(self, stream: Any = None) -> Any:
        event = self.module.Event(enable_timing=True)
        event.record(stream or self.module.current_stream())
        return event

    def _measure_unit(self) -> tuple[float, int]:
        """Returns the seconds of one product on the device, and the size at which it takes long
        enough."""
        size = SMALLEST
        while True:
            matrix = self.torch.randn(size, size, device=self.device)
            seconds = []
            for _ in range(3):
                begin = self._event()
                for _ in range(20):
                    self.torch.mm(matrix, matrix)
                end = self._event()
                self.module.synchronize()
                seconds.append(begin.elapsed_time(end) * 1e-3 / 20)
            if min(seconds) >= LEAST_UNIT or size >= LARGEST:
                return min(seconds), size
            size *= 2

    def work(self, units: int) -> None:
        """Queues this many products in the current stream."""
        for _ in range(units):
            self.torch.mm(self.left, self.left, out=self.result)

    def train(self) -> None:
        """Runs all steps of the plan, each on a batch that is already on the device."""
        kinds = plan()
        loader = self.torch.utils.data.DataLoader([self.left] * len(kinds), batch_size=None)
        gate = None
        for number, (kind, batch) in enumerate(zip(kinds, loader, strict=True)):
            previous_kind = kinds[number - 1] if number else None
            if kind == TRACED and previous_kind != TRACED:
                self._begin_trace()
            if kind == GATE and previous_kind == TRACED:
                self._end_trace()
            if kind == GATE:
                self.module.synchronize()
                self.work(min(MAX_QUEUED, round(GATE_SECONDS / self.unit_seconds)))
                gate = self._event()
            began = time.perf_counter()
            step = self._step(number, kind, batch)
            step["host_seconds"] = time.perf_counter() - began
            if kind == GATE:
                assert gate is not None
                step["ran_ahead"] = not gate.query()
        self.module.synchronize()
        for step in self.steps:
            _measure(step)

    def _step(self, number: int, kind: str, batch: Any) -> dict[str, Any]:
        events: list[Any] = [self._event()]
        step: dict[str, Any] = {"kind": kind, "events": events}
        with self._annotated(kind, f"{number} forward"):
            if kind == SLOW_FORWARD:
                step["extra_events"] = self._slow_forward()
            elif kind == SLOW_STREAM:
                step["extra_events"] = self._slow_stream()
            loss = self.model(batch).pow(2).mean()
        events.append(self._event())
        with self._annotated(kind, f"{number} backward"):
            loss.backward()
        events.append(self._event())
        with self._annotated(kind, f"{number} optimizer"):
            self.optimizer.step()
        events.append(self._event())
        self.optimizer.zero_grad()
        self.steps.append(step)
        return step

    def _slow_forward(self) -> list[Any]:
        begin = self._event()
        self.work(EXTRA_UNITS)
        return [begin, self._event()]

    def _slow_stream(self) -> list[Any]:
        """Runs work in another stream, which the computing stream waits for."""
        home = self.module.current_stream()
        self.side.wait_stream(home)
        with self.module.stream(self.side):
            begin = self._event(self.side)
            self.work(EXTRA_UNITS)
            end = self._event(self.side)
        home.wait_event(end)
        return [begin, end]

    # --- the trace ----------------------------------------------------------------------------

    def _annotated(self, kind: str, name: str) -> Any:
        """Marks the span on the host in the trace; does nothing without a trace."""
        profiler = self.torch.autograd.profiler
        return profiler.record_function(f"mgpu-doctor {name}" if kind == TRACED else "untraced")

    def _begin_trace(self) -> None:
        autograd, kind = self.torch.autograd, self.device.type
        activity = getattr(autograd.ProfilerActivity, kind.upper(), None)
        if activity is None or activity not in autograd._supported_activities():
            self.trouble = f"torch's profiler records no kernels of {kind} devices"
            return
        self.module.synchronize()
        self._profile = autograd.profiler.profile(use_device=kind, use_kineto=True)
        self._profile.__enter__()

    def _end_trace(self) -> None:
        profile, self._profile = self._profile, None
        if profile is not None:
            self.module.synchronize()
            profile.__exit__(None, None, None)
            profile.export_chrome_trace(os.path.join(sys.argv[1], TRACE))


def _measure(step: dict[str, Any]) -> None:
    """Replaces a step's events by seconds: of forward, backward, optimizer and planted work."""
    events = step.pop("events")
    step["phases"] = [earlier.elapsed_time(later) * 1e-3 for earlier, later in pairwise(events)]
    extra = step.pop("extra_events", None)
    if extra is not None:
        step["extra"] = extra[0].elapsed_time(extra[1]) * 1e-3


def measure_events(workload: Workload) -> dict[str, float]:
    """Returns the median seconds on the host that each call costs while the device is busy."""
    module = workload.module
    stream = module.current_stream()
    rounds: dict[str, list[float]] = {"record": [], "query": [], "elapsed_time": []}
    events = [module.Event(enable_timing=True) for _ in range(EVENTS)]
    for _ in range(ROUNDS):
        module.synchronize()
        workload.work(20)
        began = time.perf_counter()
        for event in events:
            event.record(stream)
        recorded = time.perf_counter()
        for event in events:
            event.query()
        queried = time.perf_counter()
        module.synchronize()
        waited = time.perf_counter()
        for earlier, later in pairwise(events):
            earlier.elapsed_time(later)
        ended = time.perf_counter()
        rounds["record"].append((recorded - began) / EVENTS)
        rounds["query"].append((queried - recorded) / EVENTS)
        rounds["elapsed_time"].append((ended - waited) / (EVENTS - 1))
    return {call: median(seconds[1:]) for call, seconds in rounds.items()}


def run() -> dict[str, Any]:
    """Returns the measurements; `trouble`: why there are none, `no-torch`, `no-device` or
    `no-events`, with the message `said`."""
    try:
        import torch
    except ImportError as error:
        return {"trouble": "no-torch", "said": str(error)}
    kind = find_kind(torch)
    if kind is None:
        return {"trouble": "no-device", "torch": torch.__version__}
    module: Any = getattr(torch, kind)
    needed = ("Event", "Stream", "current_stream", "stream", "synchronize")
    lacking = [name for name in needed if not hasattr(module, name)]
    if lacking:
        return {"trouble": "no-events", "kind": kind, "said": f"torch.{kind}.{lacking[0]}"}
    workload = Workload(torch, kind, module)
    workload.train()
    return {
        "device": describe(torch, kind, module),
        "unit_seconds": workload.unit_seconds,
        "steps": workload.steps,
        "untraced": workload.trouble,
        "events": measure_events(workload),
    }


if __name__ == "__main__":
    report = run()
    with open(os.path.join(sys.argv[1], WORKLOAD), "w", encoding="utf-8") as file:
        json.dump(report, file)
