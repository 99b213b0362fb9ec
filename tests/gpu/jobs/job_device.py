"""The device on which a job of the GPU tests trains: the machine's first GPU, or the pretend one.

Both are used alike. `work` keeps the device busy for as long as it is told: on a GPU by a kernel of
one thread that spins, so that the kernels of two ranks on one GPU do not compete for its cores.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[3]))

PRETEND, CUDA = "pretend", "cuda"
STREAMS = "streams"
"""The process group in which streams wait for other ranks, as with NCCL, on one shared device."""
CALIBRATION_CYCLES, CALIBRATIONS = 20_000_000, 30


class PretendDevice:
    """tests/support/pretend_accelerator."""

    name = PRETEND

    def __init__(self, build: str) -> None:
        from tests.support import pretend_accelerator

        self.module: Any = pretend_accelerator.load(build)
        self.time_every_turn = pretend_accelerator.time_every_turn
        self.waits = 0
        """Calls in which the host waited for the device, within `counted_waits`."""

    def join(self, group: str) -> None:
        """Makes this process a rank."""
        assert group != "gloo", "gloo cannot read the memory of the pretend device"
        dist.init_process_group(PRETEND)

    def work(self, milliseconds: float) -> None:
        """Keeps the current stream busy for so long."""
        self.module.native.work(int(milliseconds * 1e6))

    def begin_check(self) -> None:
        """From now on a wait is an error: only torch.cuda can do that; here waits are counted."""

    def end_check(self) -> None:
        """Waits are allowed again."""

    @contextmanager
    def counted_waits(self) -> Iterator[None]:
        """Counts the calls in which the host waits for the device."""
        before = self.module.native.synchronizations()
        yield
        self.waits = self.module.native.synchronizations() - before


class CudaDevice:
    """The first GPU that CUDA shows; NVIDIA's, or AMD's through HIP."""

    name = CUDA

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            sys.exit(f"torch {torch.__version__} finds no GPU")
        torch.cuda.set_device(0)
        self.module: Any = torch.cuda
        self.waits = 0
        self._cycles_per_ms = 0.0

    def join(self, group: str) -> None:
        """Makes this process a rank. Rank 0 alone measures how fast the GPU spins: two at once
        would disturb each other."""
        if group == STREAMS:
            from tests.gpu.jobs import shared_gpu_group

            shared_gpu_group.register()
        dist.init_process_group(group)
        store: Any = dist.distributed_c10d._get_default_store()
        if dist.get_rank() == 0:
            store.set("cycles", str(self._calibrate()))
        self._cycles_per_ms = float(store.get("cycles"))

    def _calibrate(self) -> float:
        rates: list[float] = []
        for _ in range(CALIBRATIONS):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            torch.cuda._sleep(CALIBRATION_CYCLES)
            end.record()
            torch.cuda.synchronize()
            rates.append(CALIBRATION_CYCLES / begin.elapsed_time(end))
        return float(median(rates[CALIBRATIONS // 2 :]))  # an idle GPU's clock is slow at first

    def time_every_turn(self) -> None:
        """The probe's limit holds: events of a GPU are cheap."""

    def work(self, milliseconds: float) -> None:
        """Keeps the current stream busy for so long."""
        self._cycles_per_ms = self._cycles_per_ms or self._calibrate()
        torch.cuda._sleep(int(milliseconds * self._cycles_per_ms))

    def begin_check(self) -> None:
        """From now on torch raises where the host would wait for the GPU."""
        torch.cuda.set_sync_debug_mode("error")

    def end_check(self) -> None:
        """Waits are allowed again."""
        torch.cuda.set_sync_debug_mode("default")

    @contextmanager
    def counted_waits(self) -> Iterator[None]:
        """Counts the calls in which the host waits for the device, in a trace of torch's
        profiler."""
        from mgpu_doctor.check.kernel_spans import is_wait

        activities = torch.profiler.ProfilerActivity
        with torch.profiler.profile(activities=[activities.CPU, activities.CUDA]) as profile:
            yield
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace.json")
            profile.export_chrome_trace(path)
            with open(path, encoding="utf-8") as file:
                self.waits = sum(map(is_wait, json.load(file)["traceEvents"]))


def leave(device: PretendDevice | CudaDevice) -> None:
    """Ends a rank once all are done; torch cannot destroy a group that is written in Python."""
    if dist.is_initialized():
        dist.barrier()
        device.module.synchronize()


def open_device(name: str, build: str | None) -> PretendDevice | CudaDevice:
    """The device of that name; `build`: where the pretend one is compiled."""
    if name == CUDA:
        return CudaDevice()
    assert build is not None, "--build is needed"
    return PretendDevice(build)
