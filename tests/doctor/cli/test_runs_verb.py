"""The verb `runs`: recordings are listed, shown and removed."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mgpu_doctor.case.model import Outcome
from mgpu_doctor.cli import app
from mgpu_doctor.report.kept_verdict import save_verdict
from tests.support import diagnoses

HOSTILE = "\x1b[31m[red]\u202etrain.py"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGPU_DOCTOR_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "120")


def make_recording(home: Path, name: str, code: int, *command: str, started: float = 1.7e9) -> None:
    folder = home / "runs" / name
    folder.mkdir(parents=True)
    info = {"started": started, "command": command, "host": os.uname().nodename}
    (folder / "recording.json").write_text(json.dumps(info))
    (folder / "end.json").write_text(json.dumps({"exit_code": code, "ended": started + 60}))


def ran(*words: str) -> Result:
    return CliRunner().invoke(app, ["runs", *words])


def test_listed_and_filtered(tmp_path: Path) -> None:
    assert "No recordings in" in ran().stdout
    make_recording(tmp_path, "first", 0, "python", "train.py")
    make_recording(tmp_path, "second", 1, "python", HOSTILE, started=1.7e9 + 9)
    lines = ran().stdout.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["second", "first"]
    assert lines[2].split()[1:7] == ["1", "min", "ok", "not", "diagnosed", "0"]
    assert "\x1b" not in ran().stdout
    assert "\u202e" not in ran().stdout
    assert "first" not in ran("--failed").stdout
    assert "second" not in ran("--match", "python train.py").stdout
    assert ran("--match", "nothing like it").exit_code == 0
    document = json.loads(ran("--json").stdout)
    assert document["runs"][0]["command"] == ["python", "[red]train.py"]
    assert document["schema"] == "mgpu-doctor/runs/1"
    assert [(run["id"], run["exit_code"]) for run in document["runs"]] == [
        ("second", 1),
        ("first", 0),
    ]


def test_the_list_shows_the_script_and_the_card_the_whole_command(tmp_path: Path) -> None:
    make_recording(tmp_path, "first", 0, "/opt/some/where/bin/python", "-u", "a/train.py", "--lr=1")
    assert ran().stdout.splitlines()[1].endswith("  train.py --lr=1")
    assert "/opt/some/where/bin/python -u a/train.py --lr=1" in ran("show", "first").stdout


def test_a_diagnosis_is_kept_and_fits_a_narrow_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    straggler = diagnoses.straggler()
    ids = ("20261127-202142-ddp-56f0b104", "20261127-202143-ddp-56f0b105")
    for number, name in enumerate(ids):
        script = ("/home/a/pretrain_something.py", "--data", "/scratch/shared/tokens")
        make_recording(tmp_path, name, 0, "torchrun", *script, "--lr", f"0.{number}")
    save_verdict(tmp_path / "runs" / ids[0], straggler)
    running = replace(straggler.case.job, outcome=Outcome.RUNNING)
    still = replace(straggler, case=replace(straggler.case, job=running))
    save_verdict(tmp_path / "runs" / ids[1], still)
    lines = {line.split()[0]: line for line in ran().stdout.splitlines()}
    assert max(map(len, lines.values())) <= 80
    assert lines["20261127-202142"].endswith("  straggler-input, rank 2  pretrain_somet… --lr 0.0")
    assert "  not diagnosed  " in lines["20261127-202143"]
    monkeypatch.setenv("COLUMNS", "100")
    assert "  straggler-input, rank 2, 44 %  pretrain_something.py … --lr 0.0" in ran().stdout
    assert "mgpu-doctor diagnose 20261127-202142" in ran("show", "20261127-202142").stdout
    assert ran("show", "20261127").exit_code == 3, "both begin so"
    kept = json.loads(ran("--json").stdout)["runs"]
    assert {run["id"]: (run["verdict"] or {}).get("ranks") for run in kept} == {
        ids[0]: [2],
        ids[1]: None,
    }


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ('{"code": ["x"], "tone": "good"}', "nothing wrong"),
        ('{"code": "a\\u001b[31m", "ranks": ["x", null], "step_fraction": 1e999}', "a"),
        ('{"tone": "unknown"}', "inconclusive"),
        ("[1]", "not diagnosed"),
        ("{", "not diagnosed"),
    ],
)
def test_a_kept_verdict_is_not_trusted(tmp_path: Path, content: str, shown: str) -> None:
    make_recording(tmp_path, "first", 0, "python", "train.py")
    (tmp_path / "runs/first/verdict.json").write_text(content)
    assert f"  ok     {shown}  " in ran().stdout
    assert ran("--json").exit_code == 0


def test_one_is_shown(tmp_path: Path) -> None:
    make_recording(tmp_path, "first", 3, "python", "train.py")
    shown = ran("show", "first")
    assert "exit 3" in shown.stdout
    assert "mgpu-doctor diagnose first" in shown.stdout
    elsewhere = str(tmp_path / "runs/first/../first")
    assert f"mgpu-doctor diagnose {elsewhere}" in ran("show", elsewhere).stdout
    wrong = ran("show", "nowhere")
    assert wrong.exit_code == 3
    assert wrong.stderr.count("\n") == 1


def test_no_link_of_a_recording_is_followed_and_no_pipe_blocks(tmp_path: Path) -> None:
    make_recording(tmp_path, "first", 0, "python", "train.py")
    make_recording(tmp_path, "second", 0, "python", "secret.py")
    first, second = tmp_path / "runs/first", tmp_path / "runs/second"
    (first / "recording.json").unlink()
    (first / "recording.json").symlink_to(second / "recording.json")
    assert "is not a recording" in ran("show", str(first)).stderr
    os.mkfifo(tmp_path / "pipe")
    (second / "end.json").unlink()
    (second / "end.json").symlink_to(tmp_path / "pipe")
    assert [run["id"] for run in json.loads(ran("--json").stdout)["runs"]] == ["second"]


def test_pruned_only_when_asked_and_agreed(tmp_path: Path) -> None:
    make_recording(tmp_path, "first", 0, "python", "train.py")
    assert ran("prune").exit_code == 2
    assert ran("prune", "--older", "soon").exit_code == 2
    assert "Nothing to remove" in ran("prune", "--older", "30d").stdout, "it was written just now"
    nobody = ran("prune", "--keep", "0")
    assert nobody.exit_code == 2
    assert "--yes" in nobody.stderr
    assert (tmp_path / "runs/first").exists()
    assert "1 recording removed" in ran("prune", "--keep", "0", "--yes").stdout
    assert not (tmp_path / "runs/first").exists()
