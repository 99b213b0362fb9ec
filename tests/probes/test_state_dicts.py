"""Gathering a state dictionary for a checkpoint, or loading one, is not training."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from mgpu_probes.inprocess import layout

from mgpu_doctor.recording.box import read_box

pytestmark = pytest.mark.slow  # it starts processes that load a framework

INJECT = Path(__file__).parents[2] / "probes" / "mgpu_probes" / "inject"

LOOP = """
import sys
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/met", rank=0, world_size=1)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.AdamW(model.parameters())
weights, states = get_state_dict(model, optimizer)  # which updates them once, by nothing
set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=states)
for turn in range(8):
    model(torch.randn(4, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    for _ in range(20 if turn in (3, 6) else 0):
        get_state_dict(model, optimizer)
dist.destroy_process_group()
"""


def test_states_that_are_gathered_are_a_checkpoint_and_no_step(tmp_path: Path) -> None:
    boxes = tmp_path / "boxes"
    boxes.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", LOOP, str(tmp_path)],
        env={"PYTHONPATH": str(INJECT), "MGPU_DOCTOR_BOXES": str(boxes), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (path,) = boxes.glob("*.box")
    steps = read_box(path).steps
    assert len(steps) == 8
    saved = np.nan_to_num(steps["phases"][:, layout.CHECKPOINT])
    assert np.count_nonzero(saved) == 2
