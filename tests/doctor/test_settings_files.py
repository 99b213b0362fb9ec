"""Which pyproject.toml is used: only one that this user or root alone could have written."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from mgpu_doctor import settings_files
from mgpu_doctor.rules.settings import SettingsError
from mgpu_doctor.settings_files import FILE, others_can_write, read_settings
from tests.support.launching import doctor, eventually, python
from tests.support.users import give_to_other_user

TABLE = '[tool.mgpu-doctor]\nignore = ["coverage-low"]\n'
SET = {"coverage-low"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with settings, and one in it."""
    (tmp_path / FILE).write_text(TABLE)
    (tmp_path / "work").mkdir()
    return tmp_path


def test_settings_of_the_users_own_are_found_above(project: Path) -> None:
    assert read_settings(project / "work").ignore == SET


def test_another_users_file_switches_nothing_off(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    give_to_other_user(project / FILE, monkeypatch, settings_files)
    assert read_settings(project / "work").ignore == set()
    assert "is not used: the file belongs to another user" in capsys.readouterr().err


@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_nothing_counts_above_a_folder_that_others_can_write_to(project: Path, mode: int) -> None:
    (project / "work").chmod(mode)
    (project / "work/run").mkdir()
    assert read_settings(project / "work/run").ignore == set()
    (project / "work" / FILE).write_text(TABLE)
    assert read_settings(project / "work/run").ignore == SET  # it is this user's all the same


def test_a_link_in_a_folder_of_everybodys_leads_nowhere(project: Path) -> None:
    (project / "work").chmod(0o777)
    (project / "work" / FILE).symlink_to(project / FILE)
    assert read_settings(project / "work").ignore == set()
    (project / "work").chmod(0o755)
    assert read_settings(project / "work").ignore == SET


@pytest.mark.parametrize("kind", ["pipe", "folder", "no text", "nothing"])
def test_what_is_no_readable_file_is_passed_over(project: Path, kind: str) -> None:
    place = project / "work" / FILE
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    elif kind == "no text":
        place.write_bytes(b"\xff[tool.mgpu-doctor]")
    assert read_settings(project / "work").ignore == SET


def test_a_job_whose_folder_has_a_pipe_for_settings_ends(tmp_path: Path) -> None:
    """`run` read the settings when the job was over, and waited for a writer for ever."""
    os.mkfifo(tmp_path / FILE)
    command = doctor(tmp_path / "r", *python("print('done')"), options=())
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE)
    eventually("the end of the run", lambda: process.poll() is not None)
    assert process.communicate()[1]
    assert process.returncode == 0


def test_a_working_folder_that_is_gone_has_no_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert settings_files.settings().ignore == frozenset()


def test_the_group_of_the_users_own_name_is_the_user(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a umask of 002, as many distributions have it, every folder is writable by a group."""
    shared = project / "work"
    shared.chmod(0o775)
    monkeypatch.setattr(settings_files, "_is_private_group", lambda _: True)
    assert not others_can_write(shared.stat())
    assert read_settings(shared).ignore == SET
    monkeypatch.setattr(settings_files, "_is_private_group", lambda _: False)
    assert others_can_write(shared.stat())
    assert read_settings(shared).ignore == set()


def test_toml_nested_without_end_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("[tool.mgpu-doctor]\nx = " + "[" * 200_000)
    with pytest.raises(SettingsError):
        read_settings(tmp_path)
