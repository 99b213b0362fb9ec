"""The examples of docs/python.md run as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mgpu_doctor import api
from mgpu_doctor.recording.box import read_box
from tests.support.recordings import HEALTHY, SLOW_INPUT, WAITING, recording

ROOT = Path(__file__).parents[3]
LOOP, DIAGNOSIS, STORED, COMPARISON, PLAN = re.findall(
    r"^```python\n(.*?)^```",
    (ROOT / "docs/python.md").read_text(encoding="utf-8"),
    re.DOTALL | re.MULTILINE,
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    recording(tmp_path / "runs/before", [HEALTHY] * 2)
    recording(tmp_path / "runs/after", [WAITING, SLOW_INPUT])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(code: str) -> dict[str, Any]:
    """What an example defines."""
    names: dict[str, Any] = {"__name__": "an_example"}
    exec(compile(code, "docs/python.md", "exec"), names)
    return names


def test_the_loop_has_its_steps_under_observation(tmp_path: Path) -> None:
    script = tmp_path / "loop.py"
    script.write_text(f"average_over_ranks = lambda gradient: gradient\n{LOOP}")
    places = (ROOT / "probes/mgpu_probes/inject", ROOT)
    subprocess.run(
        [sys.executable, str(script)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, places)),
            "MGPU_DOCTOR_BOXES": str(tmp_path),
        },
        check=True,
    )
    (file,) = tmp_path.glob("*.box")
    assert len(read_box(file).steps) == 100


@pytest.mark.usefixtures("folder")
def test_a_diagnosis_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    run(DIAGNOSIS)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("warning straggler-input (1,) ")
    assert any(line.startswith("   step time after / before: 0.") for line in lines)


@pytest.mark.usefixtures("folder")
def test_a_stored_diagnosis_is_read_again() -> None:
    names = run(STORED)
    assert names["again"] == api.diagnose("runs/after")
    assert names["straggler"].ranks == (1,)


def test_a_slower_run_is_found_in_ci(folder: Path) -> None:
    assert run(COMPARISON)["slower"] == ["B"]
    (folder / "runs/after").rename(folder / "elsewhere")
    with pytest.raises(SystemExit) as ended:
        run(COMPARISON)
    assert ended.value.code == 3


@pytest.mark.slow
@pytest.mark.untimed
def test_a_step_is_planned() -> None:
    plan = run(PLAN)["plan"]
    assert plan.fits
    assert plan.largest_batch > 16
    assert plan.prediction.needed < 24 << 30
    assert str(plan).startswith("It fits: ")
    assert api.Plan.from_json(plan.to_json()) == plan
