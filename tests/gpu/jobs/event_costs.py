"""Prints what events and memory statistics cost the host, in seconds, as a JSON object."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[3]))
from mgpu_doctor.check.device_workload import Workload, measure_events
from tests.gpu.jobs.job_device import PretendDevice, open_device

CALLS = 1_000

parser = argparse.ArgumentParser()
parser.add_argument("--device", choices=("pretend", "cuda"), required=True)
parser.add_argument("--build")
options = parser.parse_args()
device = open_device(options.device, options.build)
if isinstance(device, PretendDevice):
    device.module.native.set_ns_per_byte(8.0)  # else a product takes no time


def seconds_of(call: Callable[[], Any]) -> float:
    """Of one call, the mean of many."""
    call()
    began = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - began) / CALLS


def make_event() -> Any:
    """It is created when it is first recorded; kept, so that each one is a new one."""
    kept.append(device.module.Event(enable_timing=True))
    return kept[-1]


kept: list[Any] = []
costs: dict[str, float] = dict(measure_events(Workload(torch, device.name, device.module)))
stream = device.module.current_stream()
costs["create_and_record"] = seconds_of(lambda: make_event().record(stream))
if device.name == "cuda":
    costs["memory_statistics"] = seconds_of(lambda: torch._C._cuda_memoryStats(0))
os.write(1, f"{json.dumps({'rank': 0, 'costs': costs})}\n".encode())
