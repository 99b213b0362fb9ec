"""What `top` reads of a GPU is what NVML says, and what each reading costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.fakenvml.scenarios import SCENARIOS
from tests.gpu.conftest import ON_GPU, ON_PRETEND
from tests.gpu.gpu_environment import describe_gpu
from tests.gpu.gpu_jobs import PRETEND, Figures

SAMPLES = 20
_READ = """
import json, sys, time
import pynvml
from mgpu_probes.outside.devices import Devices

devices, samples, seconds = Devices(), [], []
for _ in range(int(sys.argv[1])):
    began = time.perf_counter()
    samples.append(devices.sample())
    seconds.append(time.perf_counter() - began)
    time.sleep(0.05)
devices.close()
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
def text(value):
    return value.decode() if isinstance(value, bytes) else value
asked = {
    "name": text(pynvml.nvmlDeviceGetName(handle)),
    "uuid": text(pynvml.nvmlDeviceGetUUID(handle)),
    "memory_total": pynvml.nvmlDeviceGetMemoryInfo(handle).total,
    "temperature": pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
}
calls = {}
for name in ("PowerUsage", "UtilizationRates", "MemoryInfo", "ComputeRunningProcesses"):
    began = time.perf_counter()
    getattr(pynvml, f"nvmlDeviceGet{name}")(handle)
    calls[name] = time.perf_counter() - began
print(json.dumps({"samples": samples, "seconds": seconds, "asked": asked, "calls": calls}))
"""
ALWAYS_KNOWN = ("name", "uuid", "memory_total", "memory_used", "temperature", "utilization")


def read(environment: Mapping[str, str]) -> dict[str, Any]:
    """Samples of the doctor's own reader, beside what NVML answers directly."""
    ended = subprocess.run(
        [sys.executable, "-c", _READ, str(SAMPLES)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    answer: dict[str, Any] = json.loads(ended.stdout)
    return answer


@pytest.fixture(params=[ON_PRETEND, ON_GPU])
def environment(request: pytest.FixtureRequest, tmp_path: Path) -> Mapping[str, str]:
    """In which NVML is the pretend library, or the machine's own."""
    if request.param != PRETEND:
        describe_gpu()
        return os.environ
    state = tmp_path / "state"
    SCENARIOS["busy"]().write(str(state))
    given: Mapping[str, str] = request.getfixturevalue("nvml").environment(state)
    return given


def test_readings_are_those_of_nvml(environment: Mapping[str, str], figures: Figures) -> None:
    answer = read(environment)
    asked = answer["asked"]
    for sample in answer["samples"][1:]:
        device = sample["devices"][0]
        assert {key: device[key] for key in ("name", "uuid", "memory_total")} == {
            key: asked[key] for key in ("name", "uuid", "memory_total")
        }
        assert device["temperature"] == pytest.approx(asked["temperature"], abs=10)
        unknown = [key for key in ALWAYS_KNOWN if device[key] is None]
        assert not unknown, device["trouble"]
        assert 0 <= device["utilization"] <= 1
        assert 0 <= device["memory_used"] <= device["memory_total"]
    seconds = sorted(answer["seconds"][1:])
    figures.note(
        nvml_sample_seconds={"median": seconds[len(seconds) // 2], "most": seconds[-1]},
        nvml_call_seconds=answer["calls"],
    )
    if figures.folder is not None:
        lines = "".join(f"{json.dumps(sample)}\n" for sample in answer["samples"])
        (figures.folder / "devices.jsonl").write_text(lines, encoding="utf-8")


def test_top_shows_the_gpu(environment: Mapping[str, str]) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "mgpu_doctor", "top", "--once", "--json"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert read(environment)["asked"]["uuid"] in ended.stdout
