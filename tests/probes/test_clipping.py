"""Clipping gradients is a part of the update, whoever calls it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from mgpu_probes.inprocess import layout
from mgpu_probes.inprocess.phase_ledger import Ledger
from mgpu_probes.inprocess.step_engine import Steps
from mgpu_probes.inprocess.step_segments import Step

from mgpu_doctor.recording.box import read_box

pytestmark = pytest.mark.slow  # it starts processes that load a framework

INJECT = Path(__file__).parents[2] / "probes" / "mgpu_probes" / "inject"
MS = 1_000_000

LOOP = """
import torch

model = torch.nn.Linear(512, 512)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for turn in range(6):
    model(torch.randn(4, 512)).square().mean().backward()
    for _ in range(100):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
"""


def test_what_ranks_wait_for_while_they_clip_is_waiting_and_the_rest_is_the_update() -> None:
    told: list[Step] = []
    steps = Steps(Ledger(0), told.append)
    for turn in range(4):
        at = turn * 20 * MS
        steps.backward_begins(at + 1 * MS)
        steps.backward_ends(at + 3 * MS)
        steps.clipping_begins(at + 4 * MS)
        steps.call_begins(at + 6 * MS)
        steps.call_ends(at + 9 * MS, ("train.py", 3, "all_reduce"))
        steps.clipping_ends(at + 10 * MS)
        steps.update_begins(at + 11 * MS)
        steps.update_ends(at + 15 * MS, 1)
    steps.leave()
    phases = told[1].phases
    assert phases[layout.OPTIMIZER] == (2 + 1 + 4) * MS
    assert phases[layout.WAIT] == 3 * MS
    assert phases[layout.BACKWARD] == 2 * MS


def test_torch_clipping_is_seen_in_a_script(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOP],
        env={"PYTHONPATH": str(INJECT), "MGPU_DOCTOR_BOXES": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    (path,) = tmp_path.glob("*.box")
    steps = read_box(path).steps
    # A hundred clippings a turn are nearly all there is of it (a tenth without them); the middle
    # turn tells, as anything may hold one of them up.
    phases = np.nan_to_num(steps["phases"][1:])
    shares = phases[:, layout.OPTIMIZER] / phases.sum(axis=1)
    assert np.median(shares) > 0.5
