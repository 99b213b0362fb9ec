from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mgpu_doctor.recording import home
from mgpu_doctor.recording.layout import INFO


def recording(folder: Path, at: int) -> Path:
    folder.mkdir(parents=True)
    (folder / INFO).write_text("{}")
    os.utime(folder / INFO, (at, at))
    return folder


def test_home_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    both = {"MGPU_DOCTOR_HOME": "/own", "XDG_STATE_HOME": "/state"}
    assert home.home(both) == Path("/own")
    assert home.home({"XDG_STATE_HOME": "/state"}) == Path("/state/mgpu-doctor")
    assert home.home({}) == Path("/home/somebody/.local/state/mgpu-doctor")
    assert home.runs(both) == Path("/own/runs")


def test_ids_tell_when_and_what_and_are_safe_names() -> None:
    ids = {home.new_id("../my job\n", 1e9) for _ in range(20)}
    assert len(ids) > 1
    for name in ids:
        assert re.fullmatch(r"\d{8}-\d{6}-my_job-[0-9a-f]{8}", name)


def test_runs_that_begin_in_one_second_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when chance gives them one name: the folder is made by one of them alone."""
    environment = {"MGPU_DOCTOR_HOME": str(tmp_path)}
    names = iter(["same", "same", "same", "other"])
    monkeypatch.setattr(home, "new_id", lambda *_: next(names))
    assert home.new_recording("job", 1e9, environment).name == "same"
    second = home.new_recording("job", 1e9, environment)
    assert second.name == "other"
    assert second.stat().st_mode & 0o777 == 0o700


def test_many_runs_at_once_never_share_a_folder(tmp_path: Path) -> None:
    environment = {"MGPU_DOCTOR_HOME": str(tmp_path)}
    with ThreadPoolExecutor(16) as pool:
        made = list(pool.map(lambda _: home.new_recording("job", 1e9, environment), range(256)))
    assert len(set(made)) == 256


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["torchrun", "--nproc-per-node", "4", "a/plain_ddp.py", "x.py"], "plain_ddp"),
        (["python", "-m", "package.train"], "train"),
        (["/opt/bin/run.sh"], "run"),
        ([], "job"),
    ],
)
def test_jobs_are_called_after_their_script(command: list[str], name: str) -> None:
    assert home.job_name(command) == name


def test_latest_and_find(tmp_path: Path) -> None:
    environment = {"MGPU_DOCTOR_HOME": str(tmp_path)}
    assert home.latest(environment) is None
    older = recording(tmp_path / "runs" / "b", 1000)
    newer = recording(tmp_path / "runs" / "a", 2000)
    (tmp_path / "runs" / "z").mkdir()
    elsewhere = recording(tmp_path / "elsewhere", 3000)
    assert home.latest(environment) == newer
    assert home.find("latest", environment) == newer
    assert home.find("b", environment) == older
    assert home.find(str(elsewhere), environment) == elsewhere
    assert home.find("z", environment) is None
