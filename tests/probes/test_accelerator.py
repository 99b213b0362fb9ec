"""What a rank tells of its GPU, on a pretend one: nothing where CUDA is not initialised."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from mgpu_probes.inprocess.frameworks import torch as torch_adapter
from mgpu_probes.inprocess.probe_context import ProbeContext
from mgpu_probes.inprocess.process_metadata import describe_process

pytestmark = pytest.mark.slow


@pytest.fixture
def context() -> Iterator[ProbeContext]:
    """Of a process in which torch is watched for the device and the precision alone."""
    context = ProbeContext()
    context.add_adapter(torch_adapter.ADAPTER)
    before = torch.autocast_increment_nesting
    torch_adapter.ADAPTER.attach(context, "torch.amp.autocast_mode", torch.amp.autocast_mode)
    yield context
    torch.autocast_increment_nesting = before


def on_a_gpu(monkeypatch: pytest.MonkeyPatch, uuid: str = "12ab-34") -> None:
    properties = SimpleNamespace(name="Pretend H100", major=9, minor=0, uuid=uuid)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)


def test_without_cuda_nothing_is_asked_of_it(context: ProbeContext) -> None:
    metadata = describe_process(context)
    assert not torch.cuda.is_initialized()
    assert metadata["device"] == "cpu"
    assert "device_uuid" not in metadata
    assert "tf32" not in metadata


def test_the_gpu_in_use(context: ProbeContext, monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_gpu(monkeypatch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    metadata = describe_process(context)
    assert metadata["device"] == "cuda:0"
    assert metadata["device_name"] == "Pretend H100"
    assert metadata["device_capability"] == [9, 0]
    assert metadata["device_uuid"] == "GPU-12ab-34"
    assert metadata["visible_devices"] == "2,3"


def test_a_mig_slice_keeps_its_own_name(
    context: ProbeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_gpu(monkeypatch, uuid="MIG-1")
    assert describe_process(context)["device_uuid"] == "MIG-1"


def test_the_device_of_the_parameters_is_preferred_to_the_one_that_is_set(
    context: ProbeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_gpu(monkeypatch)
    optimizer = SimpleNamespace(facts={"dtype": "float32", "device": "cuda:3"}, now=dict)
    context.objects.optimizers[1] = optimizer  # type: ignore[assignment]
    assert describe_process(context)["device"] == "cuda:3"


def test_tf32_by_either_name(context: ProbeContext, monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_gpu(monkeypatch)
    newer, older = SimpleNamespace(fp32_precision="tf32"), SimpleNamespace(allow_tf32=False)
    monkeypatch.setattr(torch.backends.cuda, "matmul", newer)
    monkeypatch.setattr(torch.backends, "cudnn", older)
    metadata = describe_process(context)
    assert metadata["tf32"] is True
    assert metadata["tf32_convolutions"] is False


def test_autocast_is_seen_once_and_leaves_no_trace(context: ProbeContext) -> None:
    hooked = torch.autocast_increment_nesting
    with torch.autocast("cpu", torch.bfloat16, enabled=False):
        assert context.objects.autocast is None
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.is_autocast_enabled("cpu")
    assert context.objects.autocast == "bfloat16"
    assert torch.autocast_increment_nesting is not hooked
    assert describe_process(context)["precision"] == "bfloat16+autocast"


def test_who_has_used_an_accelerator_is_never_timed_as_a_cpu_again() -> None:
    """A CPU loss now and then (an exponential average, a metric) must not turn the clock back."""
    process = ProbeContext()
    process.computes_on(None)
    assert process.device_clock == "cpu"
    process.computes_on("cuda:1")
    process.computes_on(None)
    process.computes_on("xpu:0")
    assert (process.device_clock, process.accelerator) == ("host", "cuda:1")


def test_a_loss_on_the_cpu_does_not_hide_that_a_gpu_computes(
    context: ProbeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_gpu(monkeypatch)
    context.computes_on(None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 0)
    assert describe_process(context)["clock"] == "cpu"
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 1 << 20)
    metadata = describe_process(context)
    assert (metadata["clock"], metadata["device"]) == ("host", "cuda:0")


def test_other_accelerators_are_named(context: ProbeContext) -> None:
    context.computes_on("xpu:3")
    assert (describe_process(context)["clock"], describe_process(context)["device"]) == (
        "host",
        "xpu:3",
    )
