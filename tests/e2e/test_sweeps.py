"""A sweep over real jobs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.jobs import run

pytestmark = [pytest.mark.slow, pytest.mark.untimed]


def test_one_and_two_ranks_are_run_and_compared(tmp_path: Path) -> None:
    doctor = [sys.executable, "-m", "mgpu_doctor"]
    job = ["--steps", "30", "--model", "cnn-nano", "--device", "cpu"]
    options = ["--dir", str(tmp_path / "sweep"), "--json-out", str(tmp_path / "x.json")]
    ended = run([*doctor, "train", "torch-ddp", "--sweep", "ranks=1,2", *options, *job])
    assert ended.code == 0, ended.err
    assert "samples/s" in ended.out
    made = json.loads((tmp_path / "x.json").read_text())
    assert [one["ranks"] for one in made["runs"]] == [1, 2]
    assert [one["step_work"]["samples"] for one in made["runs"]] == [32, 64]
    assert made["scaling"]["growth"] == "weak"
    assert all(one["waiting"] is not None for one in made["runs"])
    assert all(one["seconds_to_loss"] > 0 for one in made["runs"])
    assert all(one["memory"]["kind"] == "resident on the host" for one in made["runs"])
    assert made["runs"][1]["settings"]["model"] == "cnn-nano"
