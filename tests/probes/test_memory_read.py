"""A rank reads its memory often enough for a trend, rarely enough to cost little, and never
fails."""

from __future__ import annotations

import gc
import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from mgpu_probes.inprocess import memory_samples as module
from mgpu_probes.inprocess.framework_adapters import give_context
from mgpu_probes.inprocess.frameworks.torch import allocator_statistics
from mgpu_probes.inprocess.memory_samples import Memory
from mgpu_probes.inprocess.probe_context import ProbeContext

pytestmark = pytest.mark.slow  # it starts processes that load a framework

SECOND = 1_000_000_000


def read(steps: int, apart: float) -> list[int]:
    """Steps, so many seconds apart, at whose end memory is read."""
    memory = Memory()
    return [n for n in range(steps) if memory.at(SECOND + int(n * apart * SECOND))[1]]


@pytest.mark.parametrize("apart", [0.001, 0.02, 0.3, 5.0])
def test_a_trend_shows_in_a_hundred_steps(apart: float) -> None:
    assert len(read(100, apart)) >= 60


def test_a_long_run_reads_once_a_second() -> None:
    assert len(read(200_000, 0.005)) < 1000 + 300


def test_it_is_what_the_process_has_in_use() -> None:
    before = Memory().at(1)[1]
    kept = np.ones(64 << 20, np.uint8)
    grown = Memory().at(1)[1] - before
    assert kept.nbytes * 0.9 < grown < kept.nbytes * 1.5


def test_without_proc_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STATM", "/nowhere/statm")
    assert Memory().at(1) == (0, 0)


def test_reading_leaves_no_file_open() -> None:
    gc.collect()  # files of others, which close when they are found to be garbage
    memory, before = Memory(), len(os.listdir("/proc/self/fd"))
    for at in range(10):
        memory.at(at * SECOND)
    assert len(os.listdir("/proc/self/fd")) == before


def on_a_gpu(monkeypatch: pytest.MonkeyPatch, statistics: Any) -> None:
    give_context(ProbeContext())
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    pretend = SimpleNamespace(_cuda_memoryStats=lambda _: statistics)
    monkeypatch.setattr(torch, "_C", pretend)


def test_torchs_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    nested = {
        "allocated_bytes": {"all": {"current": 5, "peak": 9, "allocated": 99}},
        "reserved_bytes": {"all": {"current": 12, "peak": 12}},
        "num_alloc_retries": 3,
        "num_ooms": 0,
    }
    on_a_gpu(monkeypatch, nested)
    assert allocator_statistics.allocated() == (5, 9)
    assert allocator_statistics.describe()["device_memory"] == {
        "allocated": 5,
        "allocated_peak": 9,
        "reserved": 12,
        "reserved_peak": 12,
        "retries": 3,
        "ooms": 0,
    }


@pytest.mark.parametrize("statistics", [{}, None, {"allocated_bytes": 7}])
def test_an_allocator_that_tells_otherwise(
    monkeypatch: pytest.MonkeyPatch, statistics: object
) -> None:
    on_a_gpu(monkeypatch, statistics)
    assert allocator_statistics.allocated() == (0, 0)


def test_where_no_gpu_is_in_use_torch_is_not_asked() -> None:
    assert allocator_statistics.allocated() == (0, 0)
    assert allocator_statistics.describe() == {}
    assert not torch.cuda.is_initialized()
