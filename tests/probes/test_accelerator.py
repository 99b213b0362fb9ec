"""What a rank tells of its GPU, on a pretend one: nothing where CUDA is not initialised."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mgpu_probes.inprocess import process_metadata
from mgpu_probes.inprocess.probe_context import ProbeContext, probe
from mgpu_probes.inprocess.torch_hooks import accelerator

pytestmark = pytest.mark.slow


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A process whose parts of the certificate are this module's alone."""
    monkeypatch.setattr(probe, "metadata_parts", [])
    monkeypatch.setattr(process_metadata, "autocast", [])
    monkeypatch.setattr(process_metadata, "optimizers", {})
    monkeypatch.setattr(probe, "device_clock", "host")
    before = torch.autocast_increment_nesting
    accelerator.patch(torch.amp.autocast_mode)
    yield monkeypatch
    torch.autocast_increment_nesting = before


def on_a_gpu(monkeypatch: pytest.MonkeyPatch, uuid: str = "12ab-34") -> None:
    properties = SimpleNamespace(name="Pretend H100", major=9, minor=0, uuid=uuid)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)


def birth() -> dict[str, Any]:
    return process_metadata.certificate()


@pytest.mark.usefixtures("told")
def test_without_cuda_nothing_is_asked_of_it() -> None:
    certificate = birth()
    assert not torch.cuda.is_initialized()
    assert certificate["device"] == "cpu"
    assert "device_uuid" not in certificate
    assert "tf32" not in certificate


def test_the_gpu_in_use(told: pytest.MonkeyPatch) -> None:
    on_a_gpu(told)
    told.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    certificate = birth()
    assert certificate["device"] == "cuda:0"
    assert certificate["device_name"] == "Pretend H100"
    assert certificate["device_capability"] == [9, 0]
    assert certificate["device_uuid"] == "GPU-12ab-34"
    assert certificate["visible_devices"] == "2,3"


def test_a_mig_slice_keeps_its_own_name(told: pytest.MonkeyPatch) -> None:
    on_a_gpu(told, uuid="MIG-1")
    assert birth()["device_uuid"] == "MIG-1"


def test_parameters_tell_the_device_better_than_the_one_that_is_set(
    told: pytest.MonkeyPatch,
) -> None:
    on_a_gpu(told)
    optimizer = SimpleNamespace(facts={"dtype": "float32", "device": "cuda:3"}, now=dict)
    told.setitem(process_metadata.optimizers, 1, optimizer)
    assert birth()["device"] == "cuda:3"


def test_tf32_by_either_name(told: pytest.MonkeyPatch) -> None:
    on_a_gpu(told)
    newer, older = SimpleNamespace(fp32_precision="tf32"), SimpleNamespace(allow_tf32=False)
    told.setattr(torch.backends.cuda, "matmul", newer)
    told.setattr(torch.backends, "cudnn", older)
    certificate = birth()
    assert certificate["tf32"] is True
    assert certificate["tf32_convolutions"] is False


@pytest.mark.usefixtures("told")
def test_autocast_is_seen_once_and_leaves_no_trace() -> None:
    hooked = torch.autocast_increment_nesting
    with torch.autocast("cpu", torch.bfloat16, enabled=False):
        assert process_metadata.autocast == []
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.is_autocast_enabled("cpu")
    assert process_metadata.autocast == ["bfloat16"]
    assert torch.autocast_increment_nesting is not hooked
    assert birth()["precision"] == "bfloat16+autocast"


def test_who_has_used_an_accelerator_is_never_timed_as_a_cpu_again() -> None:
    """A CPU loss now and then (an exponential average, a metric) must not turn the clock back."""
    process = ProbeContext()
    process.computes_on(None)
    assert process.device_clock == "cpu"
    process.computes_on("cuda:1")
    process.computes_on(None)
    process.computes_on("xpu:0")
    assert (process.device_clock, process.accelerator) == ("host", "cuda:1")


def test_a_loss_on_the_cpu_does_not_hide_that_a_gpu_computes(told: pytest.MonkeyPatch) -> None:
    told.setattr(probe, "accelerator", None)
    on_a_gpu(told)
    probe.computes_on(None)
    told.setattr(torch.cuda, "max_memory_allocated", lambda: 0)
    assert birth()["clock"] == "cpu"
    told.setattr(torch.cuda, "max_memory_allocated", lambda: 1 << 20)
    certificate = birth()
    assert (certificate["clock"], certificate["device"]) == ("host", "cuda:0")


def test_other_accelerators_are_named(told: pytest.MonkeyPatch) -> None:
    told.setattr(probe, "accelerator", None)
    probe.computes_on("xpu:3")
    assert (birth()["clock"], birth()["device"]) == ("host", "xpu:3")
