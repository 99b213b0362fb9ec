"""DeepSpeed's engine, by a stand-in with its methods: the real one is not installed for the tests
(docs/frameworks-seen.md has what was seen of it)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from mgpu_probes.inprocess import layout
from mgpu_probes.inprocess.phase_ledger import Ledger
from mgpu_probes.inprocess.step_engine import Steps
from mgpu_probes.inprocess.step_segments import Step

from mgpu_doctor.recording.box import Box, read_box

pytestmark = pytest.mark.slow  # it starts processes that load a framework

INJECT = Path(__file__).parents[2] / "probes" / "mgpu_probes" / "inject"
MS = 1_000_000

ENGINE = """
import torch

class DeepSpeedEngine(torch.nn.Module):
    def __init__(self, module, optimizer, accumulation):
        super().__init__()
        self.module, self.optimizer = module, optimizer
        self.accumulation, self.micro_steps, self.global_steps = accumulation, 0, 0
    def zero_optimization_stage(self):
        return 2
    def gradient_accumulation_steps(self):
        return self.accumulation
    def zero_reduce_bucket_size(self):
        raise AttributeError("not configured")
    def forward(self, *inputs):
        return self.module(*inputs)
    def backward(self, loss):
        loss.backward()
        self._backward_epilogue()
    def _backward_epilogue(self):
        self.reduced = [each.grad.clone() for each in self.module.parameters()]
    def step(self):
        self.micro_steps += 1
        if self.micro_steps % self.accumulation == 0:
            self._take_model_step(None)
            self.global_steps += 1
    def _take_model_step(self, lr_kwargs):
        self._step_applied = self.global_steps != 3  # in float16, gradients that are too large
        for _ in self.optimizer.param_groups if self._step_applied else ():
            self.optimizer.step()  # DeepSpeed calls it for each group of parameters
        self.optimizer.zero_grad()

class PipelineEngine(DeepSpeedEngine):
    pass
"""
LOOP = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
from deepspeed.runtime import engine as its

torch.manual_seed(0)
module = torch.nn.Linear(8, 8)
groups = [{"params": [each]} for each in module.parameters()]
engine = getattr(its, sys.argv[2])(module, torch.optim.SGD(groups, lr=0.1), 2)
for turn in range(12):
    engine.backward(engine(torch.randn(4, 8)).square().mean())
    engine.step()
"""


def trained(folder: Path, engine: str) -> Box:
    package = folder / "packages" / "deepspeed" / "runtime"
    package.mkdir(parents=True)
    for init in (package.parent / "__init__.py", package / "__init__.py"):
        init.touch()
    (package / "engine.py").write_text(ENGINE)
    boxes = folder / "boxes"
    boxes.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", LOOP, str(folder / "packages"), engine],
        env={"PYTHONPATH": str(INJECT), "MGPU_DOCTOR_BOXES": str(boxes), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    (path,) = boxes.glob("*.box")
    return read_box(path)


def test_an_update_of_the_engine_is_a_step_whatever_it_adds_up(tmp_path: Path) -> None:
    box = trained(tmp_path, "DeepSpeedEngine")
    assert box.state == "ended"
    assert box.birth["strategy"] == "deepspeed+zero2"
    assert box.birth["deepspeed"] == {"zero_stage": 2, "accumulation": 2, "bucket_elements": None}
    assert len(box.steps) == 6
    assert set(box.steps["micro_batches"].tolist()) == {2}
    assert [bool(flags & layout.SKIPPED) for flags in box.steps["flags"]] == [
        turn == 3 for turn in range(6)
    ]


def test_an_engine_of_stages_is_a_pipeline(tmp_path: Path) -> None:
    assert trained(tmp_path, "PipelineEngine").birth["strategy"] == "deepspeed+pipeline+zero2"


@pytest.mark.parametrize("waits", [0, 3])
def test_bringing_gradients_together_is_the_end_of_backward(waits: int) -> None:
    told: list[Step] = []
    steps = Steps(Ledger(0), told.append)
    for turn in range(4):
        at = turn * 20 * MS
        steps.forward_begins(at)
        steps.forward_ends(at + 1 * MS)
        steps.backward_begins(at + 1 * MS)
        steps.backward_ends(at + 3 * MS)
        steps.reducing_begins(at + 3 * MS)
        steps.call_begins(at + 5 * MS)
        steps.call_ends(at + (5 + waits) * MS, ("comm.py", 3, "all_reduce"))
        steps.reducing_ends(at + 10 * MS)
        steps.update_begins(at + 10 * MS)
        steps.update_ends(at + 15 * MS, 1)
    steps.leave()
    phases = told[1].phases
    assert phases[layout.BACKWARD] == (2 + 7 - waits) * MS
    assert phases[layout.WAIT] == waits * MS
    assert phases[layout.OPTIMIZER] == 5 * MS
    assert len(told) == 4
