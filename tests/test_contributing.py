"""The examples of CONTRIBUTING.md work: what a newcomer copies from there must run."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from mgpu_trainers import catalogue
from mgpu_trainers.capabilities import Capability
from mgpu_trainers.trainer import Trainer
from msgspec import structs
from textual.app import ComposeResult

from mgpu_doctor import diagnosis
from mgpu_doctor.recording.box import read_box
from mgpu_doctor.rules.catalogue import Catalogue
from mgpu_doctor.rules.rule import RuleError, check_rule
from mgpu_doctor.tui.app import TopApp
from mgpu_doctor.tui.panel import Panel, Room
from tests.support.frames import STRAGGLER, eight_gpus
from tests.support.screens import Still, screen_text, shown
from tests.support.synthetic import Synthetic, synthetic_case

PAGE = Path(__file__).parents[1] / "CONTRIBUTING.md"


def examples(section: str) -> list[str]:
    """The Python blocks of a section, as they stand on the page."""
    text = PAGE.read_text(encoding="utf-8").split(f"## {section}\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def run(code: str) -> dict[str, Any]:
    """What an example defines."""
    names: dict[str, Any] = {"__name__": "an_example"}
    exec(compile(code, "CONTRIBUTING.md", "exec"), names)
    return names


def test_a_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    (rule,) = run(examples("Add a rule")[0])["RULES"]
    monkeypatch.setattr(diagnosis, "catalogue", lambda: Catalogue((check_rule(rule),)))
    for job, codes in (
        (Synthetic(base={"forward": 0.05}), ["long-steps"]),
        (Synthetic(base={"forward": 0.01}), []),
    ):
        assert [
            finding.code for finding in diagnosis.diagnose(synthetic_case(job)).findings
        ] == codes
    with pytest.raises(RuleError, match="did you mean 'step_seconds'"):
        check_rule(replace(rule, needs=("step_second",)))


async def test_a_panel(monkeypatch: pytest.MonkeyPatch) -> None:
    module, line = examples("Add a panel")
    names = run(module) | {"Panel": Panel, "Room": Room}
    composed = TopApp.compose

    def compose(app: TopApp) -> ComposeResult:
        yield eval(line.strip().removeprefix("yield "), names)
        yield from composed(app)

    monkeypatch.setattr(TopApp, "compose", compose)
    app = TopApp(Still(structs.replace(STRAGGLER, devices=eight_gpus())), interval=3600)
    async with app.run_test(size=(120, 50)) as pilot:
        await shown(pilot)
        watts = [gpu.power_watts for gpu in eight_gpus().devices if gpu.power_watts is not None]
        assert f"{sum(watts):.0f} W on {len(watts)} GPUs" in screen_text(app)
        assert "─Power─" in screen_text(app)


def entry() -> Trainer:
    """The catalogue's entry, as the page has it."""
    trainer = eval(examples("Add a trainer")[1], vars(catalogue).copy())
    assert isinstance(trainer, Trainer)
    return trainer


def test_an_entry_of_the_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "TRAINERS", (*catalogue.TRAINERS, entry()))
    trainer = catalogue.find("torch-averaged")
    assert trainer.has(Capability.STEP_COLLECTIVES)
    planted = {"steps": "5", "fault": ["slow:rank=1,phase=backward,ms=40"]}
    started = catalogue.command(trainer, 2, planted)
    assert "mgpu_trainers.pytorch.averaged" in started
    assert "slow:rank=1,phase=backward,ms=40" in started


@pytest.mark.slow
def test_a_strategy_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch
    import torch.distributed as dist
    from mgpu_trainers.pytorch.common import torch_loop
    from mgpu_trainers.pytorch.common.process_group import Place

    monkeypatch.setattr(catalogue, "TRAINERS", (*catalogue.TRAINERS, entry()))
    monkeypatch.setitem(sys.modules, "an_example", ModuleType("an_example"))
    averaged = run(examples("Add a trainer")[0])["Averaged"]
    options = ["--model", "cnn-nano", "--batch", "8", "--steps", "3", "--log-every", "1"]
    args = catalogue.arguments(entry(), options, 1)
    place = Place(0, 1, torch.device("cpu"))
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        torch_loop.train(averaged(args, place), args, place)
    finally:
        dist.destroy_process_group()
    assert "step 3" in capsys.readouterr().out


def test_a_framework_adapter(tmp_path: Path) -> None:
    """The folder alone: the probe then names the framework and counts its steps."""
    probes = tmp_path / "probes"
    for folder in ("inject", "inprocess"):
        shutil.copytree(PAGE.parent / "probes/mgpu_probes" / folder, probes / folder)
    adapter = probes / "inprocess/frameworks/pretend/__init__.py"
    adapter.parent.mkdir()
    (example,) = examples("Add a framework adapter")
    adapter.write_text(example)
    framework = tmp_path / "pretend"
    framework.mkdir()
    (framework / "__init__.py").touch()
    (framework / "training.py").write_text("def update(model): model.append(1)\n")
    script = "from pretend import training\nfor _ in range(20): training.update([])\n"
    boxes = tmp_path / "boxes"
    boxes.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": f"{probes / 'inject'}:{tmp_path}", "MGPU_DOCTOR_BOXES": str(boxes)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    (path,) = boxes.glob("*.box")
    box = read_box(path)
    assert box.birth["framework"] == "pretend"
    assert len(box.steps) == 20
    assert box.state == "ended"
