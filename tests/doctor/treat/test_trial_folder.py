"""Folders of trials: removed when the session ends; those of killed sessions by the next one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

from mgpu_doctor.treat import trial_folder as trial_folder_module
from mgpu_doctor.treat.trial_folder import PREFIX, hold, remove_if_abandoned, trial_folder

SESSION = """
from mgpu_doctor.treat.trial_folder import trial_folder
with trial_folder() as folder:
    (folder / "000").mkdir()
    print(folder, flush=True)
    input()
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MGPU_DOCTOR_HOME", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_the_folder_of_a_killed_session_is_removed_by_the_next_one() -> None:
    command = [sys.executable, "-c", SESSION]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True) as session:
        assert session.stdout is not None
        folder = Path(session.stdout.readline().strip())
        with trial_folder() as other:
            assert other != folder
        assert (folder / "000").exists()
        session.kill()
    with trial_folder():
        assert not folder.exists()


def test_a_folder_that_the_observer_of_a_trial_holds_is_kept(home: Path) -> None:
    folder = home / f"{PREFIX}1"
    folder.mkdir()
    lock = hold(folder)
    remove_if_abandoned(folder)
    assert folder.exists()
    os.close(lock)
    remove_if_abandoned(folder)
    assert not folder.exists()


def test_only_folders_of_trials_are_removed(home: Path) -> None:
    (home / "runs").mkdir()
    (home / f"{PREFIX}file").touch()
    (home / f"{PREFIX}link").symlink_to(home / "runs")
    with trial_folder() as folder:
        pass
    assert not folder.exists()
    assert {each.name for each in home.iterdir()} == {"runs", f"{PREFIX}file", f"{PREFIX}link"}


def test_a_folder_of_another_user_is_kept(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = home / f"{PREFIX}1"
    folder.mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    remove_if_abandoned(folder)
    assert folder.exists()


def test_a_folder_that_another_session_removes_before_it_is_held_is_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    removed: list[Path] = []

    def hold_late(folder: Path) -> int:
        if not removed:
            remove_if_abandoned(folder)
            removed.append(folder)
        return hold(folder)

    monkeypatch.setattr(trial_folder_module, "hold", hold_late)
    with trial_folder() as folder:
        assert folder.is_dir()
        assert removed != [folder]
