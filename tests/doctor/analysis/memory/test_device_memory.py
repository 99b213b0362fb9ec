"""What a device holds besides what a step allocates."""

from __future__ import annotations

import pytest

from mgpu_doctor.analysis.memory import device_memory as known
from mgpu_doctor.analysis.memory.memory_plan import Framework, Plan, Settings, Strategy


@pytest.mark.parametrize(
    ("device", "reserve"),
    [
        (None, known.LEFT_HOPPER),
        ("H100-80GB", known.LEFT_HOPPER),
        ("2GiB", known.LEFT_SMALL),
        ("T4", known.LEFT_VOLTA),
        ("A100-80GB", known.LEFT),
    ],
)
def test_tensorflow_leaves_the_driver_what_its_device_needs(
    device: str | None, reserve: known.Constant
) -> None:
    gpu = known.find_gpu(device) if device else None
    plan = Plan(Settings(8), framework=Framework.TENSORFLOW)
    assert known.list_constants(plan, gpu) == (known.CONTEXT, reserve)


@pytest.mark.parametrize(
    ("strategy", "ranks", "communicator"),
    [
        (Strategy.SINGLE, 1, ()),
        (Strategy.DDP, 1, ()),
        (Strategy.DDP, 2, (known.NCCL_PAIR,)),
        (Strategy.DDP, 3, (known.NCCL,)),
    ],
)
def test_only_ranks_that_talk_have_a_communicator(
    strategy: Strategy, ranks: int, communicator: tuple[known.Constant, ...]
) -> None:
    plan = Plan(Settings(8), strategy, ranks)
    own = (known.CONTEXT, known.WORKSPACE)
    assert known.list_constants(plan, known.find_gpu("A100-40GB")) == (*own, *communicator)
    assert known.list_constants(plan, known.find_gpu("H200"))[1] == known.WORKSPACE_HOPPER
