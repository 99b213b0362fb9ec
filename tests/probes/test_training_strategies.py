"""How the probe names a script's parallel strategies, and what it reports of a pipeline."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from mgpu_probes.inprocess.probe_context import ProbeContext
from mgpu_probes.inprocess.process_metadata import describe_process
from mgpu_probes.inprocess.step_segments import UPDATE

from mgpu_doctor.recording.box import Box, read_box

pytestmark = pytest.mark.slow  # it starts processes that load a framework

INJECT = Path(__file__).parents[2] / "probes" / "mgpu_probes" / "inject"

SETTING_UP = """
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

dist.init_process_group("fake", rank=1, world_size=2, store=FakeStore())
mesh = init_device_mesh("cpu", (2,))
for _ in range(20):
    parallelize_module(nn.Linear(8, 8), mesh, ColwiseParallel())
model = DistributedDataParallel(nn.Linear(4, 4))
ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.SGD, lr=0.1)
PostLocalSGDState(None, None, start_localSGD_iter=1)
stages = [PipelineStage(nn.Linear(4, 4), number, 4, torch.device("cpu")) for number in (1, 3)]
ScheduleInterleaved1F1B(stages, 4, loss_fn=nn.functional.mse_loss)
ScheduleInterleaved1F1B(stages, 8, loss_fn=nn.functional.mse_loss)
"""


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Box:
    folder = tmp_path_factory.mktemp("boxes")
    done = subprocess.run(
        [sys.executable, "-c", SETTING_UP],
        env={"PYTHONPATH": str(INJECT), "MGPU_DOCTOR_BOXES": str(folder), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.box")
    return read_box(path)


def test_what_replaces_plain_ddp_is_reported_in_its_place(box: Box) -> None:
    assert box.birth["strategy"] == "localsgd+pipeline+tensor+zero1"
    assert box.birth["ddp"] is not None


def test_dividing_layers_before_training_is_no_step(box: Box) -> None:
    assert box.state == "ended"
    assert len(box.steps) == 0


def test_a_pipeline_tells_its_stages_and_its_first_schedule(box: Box) -> None:
    assert box.birth["pipeline"] == {
        "stages": 4,
        "held": [1, 3],
        "schedule": "ScheduleInterleaved1F1B",
        "micro_batches": 4,
    }


class Spread:
    """An optimizer whose parameters are on several devices."""

    def __init__(self, *devices: str) -> None:
        parameters = [Parameter(device) for device in devices]
        self.param_groups = [{"params": parameters, "lr": 0.1}]


class Parameter(SimpleNamespace):
    dtype = torch.float32

    def __init__(self, device: str) -> None:
        super().__init__(device=torch.device(device))

    def numel(self) -> int:
        return 4


@pytest.mark.parametrize(
    ("devices", "strategy"),
    [
        (("cuda:0", "cuda:1", "cuda:0"), "mp"),
        (("cuda:1",), "single"),
        (("cpu", "cuda:0"), "single"),
        (("cpu",), "single"),
    ],
)
def test_a_model_on_several_devices_is_model_parallel(
    devices: tuple[str, ...], strategy: str
) -> None:
    context = ProbeContext()
    optimizer = Spread(*devices)
    context.objects.note_optimizer(optimizer)
    assert describe_process(context)["strategy"] == strategy


@pytest.mark.parametrize(
    ("updates", "sends", "strategy"),
    [(True, True, "ps"), (True, False, "manual"), (False, True, "manual")],
)
def test_who_only_updates_and_sends_is_a_parameter_server(
    updates: bool, sends: bool, strategy: str
) -> None:
    context = ProbeContext()
    context.world_size, context.sends = 3, lambda: sends
    context.fast_path = SimpleNamespace(  # type: ignore[assignment]
        only_updates=updates, level=UPDATE
    )
    assert describe_process(context)["strategy"] == strategy
