"""The verb `runs`: recordings are listed, shown and removed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mgpu_doctor.cli import app

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
    assert lines[2].split()[1:5] == ["1", "min", "ok", "0"]
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


def test_the_list_tells_the_program_without_its_folder_the_card_tells_both(tmp_path: Path) -> None:
    make_recording(tmp_path, "first", 0, "/opt/some/where/bin/python", "train.py")
    assert ran().stdout.splitlines()[1].endswith("  python train.py")
    assert "/opt/some/where/bin/python train.py" in ran("show", "first").stdout


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
