"""Defective GPUs are found without a job, and stand at the head of the screen and on their page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from mgpu_doctor.case.device_samples import DeviceReader, DeviceSample
from mgpu_doctor.findings import Culprit, Finding
from mgpu_doctor.live import gpu_watch
from mgpu_doctor.live.frame import Frame, GpuKey
from mgpu_doctor.live.gpu_watch import GpuWatch
from mgpu_doctor.tui.panels.header import header_lines
from mgpu_doctor.tui.screens.gpu_details import gpu_page_lines
from mgpu_doctor.tui.view import View
from tests.fakenvml.fakenvml import machine
from tests.support import diagnoses
from tests.support.nvml import PretendNvml

SAMPLES = 12
FOUND = {
    "lost": ("gpu-lost", 3),
    "lost_late": ("gpu-lost", 3),
    "throttled": ("gpu-throttled", 2),
    "ecc": ("gpu-ecc", 1),
    "ecc_retired": ("gpu-ecc", 1),
    "nvlink_down": ("nvlink-down", 4),
    "pcie_degraded": ("pcie-degraded", 7),
}
HEALTHY = ("h100", "busy", "hung", "mig", "unified", "mute", "hot", "no_permission", "consumer")


def samples_of(nvml: PretendNvml, folder: Path, name: str) -> list[DeviceSample]:
    reader = DeviceReader("node-a")
    read = nvml.samples(folder / "state", *[machine(name)] * SAMPLES)
    samples = [reader.read(sample) for sample in read]
    return [sample for sample in samples if sample is not None]


def watched(samples: list[DeviceSample]) -> GpuWatch:
    watch = GpuWatch()
    for sample in samples:
        watch.add(sample)
    return watch


@pytest.mark.parametrize("name", FOUND)
def test_a_defective_gpu_is_at_the_head_and_on_its_page(
    nvml: PretendNvml, tmp_path: Path, name: str
) -> None:
    samples = samples_of(nvml, tmp_path, name)
    code, index = FOUND[name]
    found = {each.culprits[0].device: each for each in watched(samples).judge()}
    if name == "nvlink_down":  # GPU 0 counts three replays a second: too few if the test is quick
        found.pop("GPU 0", None)
    ((device, finding),) = found.items()
    assert (finding.code, device) == (code, f"GPU {index}")
    frame = Frame(samples[-1].at, "live", devices=samples[-1], hint="no job", hardware=(finding,))
    head = [line.plain.rstrip() for line in header_lines(frame, 100, View())]
    assert head[1].startswith(f"! {code}  ")
    assert f"GPU {index}" in head[1]
    assert head[2] == "no job"
    with_job = structs.replace(frame, diagnosis=diagnoses.straggler(), hint=None)
    head = [line.plain.rstrip() for line in header_lines(with_job, 100, View())]
    assert head[-1].startswith(f"! {code}  ")
    assert head[-2].startswith("! rank 2 is slow")
    for which in (index, 0):
        page = gpu_page_lines(frame, 100, View(gpu=GpuKey("node-a", which)))
        assert (code in " ".join(line.plain for line in page)) is (which == index)


def test_a_defect_of_another_gpu_than_the_verdict_names_is_at_the_head(
    nvml: PretendNvml, tmp_path: Path
) -> None:
    samples = samples_of(nvml, tmp_path, "lost")
    (lost,) = watched(samples).judge()
    other = replace(lost, title="GPU 5 is lost", culprits=(Culprit(None, "node-a", "GPU 5"),))

    def head(*of_job: Finding) -> list[str]:
        diagnosis = replace(diagnoses.straggler(), findings=of_job)
        frame = Frame(
            samples[-1].at, "live", diagnosis, devices=samples[-1], hardware=(lost, other)
        )
        lines = (line.plain.rstrip() for line in header_lines(frame, 120, View()))
        return [line.split("  ")[1] for line in lines if line.startswith("! gpu-lost")]

    assert head() == [lost.title, other.title]
    assert head(lost) == [other.title], "the verdict names the first"
    assert head(replace(lost, culprits=lost.culprits + other.culprits)) == []
    diagnosis = replace(diagnoses.straggler(), findings=(other,))
    frame = Frame(samples[-1].at, "live", diagnosis, devices=samples[-1], hardware=(lost,))
    page = gpu_page_lines(frame, 100, View(gpu=GpuKey("node-a", 3)))
    assert lost.title in " ".join(line.plain for line in page)


def test_two_samples_are_enough_for_one_frame(nvml: PretendNvml, tmp_path: Path) -> None:
    watch = GpuWatch()
    for sample, codes in zip(samples_of(nvml, tmp_path, "lost"), ([], ["gpu-lost"]), strict=False):
        watch.add(sample)
        assert [finding.code for finding in watch.judge()] == codes


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_gpus_are_not_even_judged(
    nvml: PretendNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Judging loads the analysis, which takes memory."""
    monkeypatch.setattr(gpu_watch.GpuWatch, "_find", lambda _: pytest.fail("judged"))
    assert watched(samples_of(nvml, tmp_path, name)).judge() == ()


def test_a_gpu_that_is_no_longer_listed_is_lost(nvml: PretendNvml, tmp_path: Path) -> None:
    samples = samples_of(nvml, tmp_path, "busy")
    start = samples[0].at
    samples = [structs.replace(sample, at=start + place) for place, sample in enumerate(samples)]
    fewer = [structs.replace(sample, devices=sample.devices[:7]) for sample in samples[6:]]
    (finding,) = watched([*samples[:6], *fewer]).judge()
    assert (finding.code, finding.culprits[0].device) == ("gpu-lost", "GPU 7")


def test_what_recovers_is_no_longer_reported(nvml: PretendNvml, tmp_path: Path) -> None:
    watch = watched(samples_of(nvml, tmp_path, "throttled"))
    assert watch.judge()
    for sample in samples_of(nvml, tmp_path, "busy") * 3:
        watch.add(structs.replace(sample))
    assert watch.judge() == ()
