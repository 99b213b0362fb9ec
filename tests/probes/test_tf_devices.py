"""What a rank reports of TensorFlow's devices and of the clock of its phases, with a pretend
device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from mgpu_probes.inprocess.frameworks.tensorflow import tensorflow_metadata
from mgpu_probes.inprocess.probe_context import ProbeContext

from mgpu_doctor.case.rank_device import accelerator, is_host_stamped
from tests.support.synthetic import Synthetic, make_rank, records


def tensorflow(*kinds: str) -> Any:
    """One with these logical devices."""
    return SimpleNamespace(
        config=SimpleNamespace(
            list_logical_devices=lambda: [SimpleNamespace(device_type=kind) for kind in kinds],
            threading=SimpleNamespace(
                get_intra_op_parallelism_threads=lambda: 0,
                get_inter_op_parallelism_threads=lambda: 0,
            ),
            functions_run_eagerly=lambda: False,
        )
    )


@pytest.mark.parametrize(
    ("kinds", "device", "clock", "kind_is_gpu"),
    [
        (("CPU",), "cpu", "cpu", False),
        (("CPU", "GPU", "GPU"), "gpu:0", "host", True),
        (("CPU", "TPU"), "tpu:0", "host", False),
    ],
)
def test_what_tensorflow_does_on_a_device_is_stamped_by_the_host(
    monkeypatch: pytest.MonkeyPatch,
    kinds: tuple[str, ...],
    device: str,
    clock: str,
    kind_is_gpu: bool,
) -> None:
    monkeypatch.setattr(tensorflow_metadata, "probe", ProbeContext(), raising=False)
    facts = tensorflow_metadata._devices(tensorflow(*kinds))
    assert (facts["device"], facts["clock"]) == (device, clock)
    assert ("untimed" in facts) == (clock == "host")
    steps = records(Synthetic(ranks=1))[0]
    rank = make_rank(0, steps, device=device, birth={**facts, "framework": "tensorflow"})
    assert is_host_stamped(rank) == (clock == "host")
    assert (accelerator(rank) is not None) == kind_is_gpu
    assert rank.metadata.untimed == facts.get("untimed")
