"""Nodes that find one another in a folder: one recording, a part per node."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path

import pytest

from mgpu_doctor.recording.joint_recordings import (
    FRESH,
    JOINT,
    are_of_one_job,
    claim_recording,
    combine_ends,
    find_parts,
    host_of,
    join_recording,
    list_parts,
    name_part,
)
from mgpu_doctor.recording.layout import END, HOSTS, INFO
from mgpu_doctor.recording.write import OccupiedError, write_json

KEY = "slurm c 1.0 0"


def begin(home: Path, host: str, key: str = KEY) -> Path:
    """What `run` does on a host: its part of the recording."""
    return join(claim(home, host, key), host, key)


def claim(home: Path, part: str, key: str = KEY, *, join_it: bool = False) -> Path:
    """The recording of the job, of which `part` is one."""
    folder = claim_recording(key, "train", time.time(), part, {"MGPU_DOCTOR_HOME": str(home)})
    if join_it:
        join(folder, part, key)
    return folder


def join(
    folder: Path, part_name: str, key: str = KEY, started: float = 1000.0, pid: int = 7
) -> Path:
    info = {JOINT: key, "host": part_name, "started": started, "doctor_pid": pid}
    part, _ = join_recording(folder, info, key, part_name)
    write_json(part / INFO, info)
    return part


def test_the_first_node_makes_the_recording_and_the_others_join_it(tmp_path: Path) -> None:
    parts = [begin(tmp_path, host) for host in ("a", "b", "c")]
    assert len({part.parent.parent for part in parts}) == 1
    folder = parts[0].parent.parent
    assert json.loads((folder / INFO).read_text())["host"] == "a"
    assert [host for host, _, end in find_parts(folder) if end is None] == ["a", "b", "c"]
    assert begin(tmp_path, "a", "slurm c 2.0 0").parent.parent != folder


def test_tasks_of_a_node_have_parts_of_their_own_in_any_order(tmp_path: Path) -> None:
    names = [name_part(host, task) for host in ("a", "b") for task in (1, 0, 2)]
    (folder,) = {claim(tmp_path, name, join_it=True) for name in names}
    assert list_parts(folder) == ["a", "a/tasks/1", "a/tasks/2", "b", "b/tasks/1", "b/tasks/2"]
    assert {host_of(name) for name in names} == {"a", "b"}
    with pytest.raises(OccupiedError):
        join(folder, "a/tasks/1")
    assert claim(tmp_path, "a/tasks/1") != folder  # a second run in the same step


def test_a_second_run_in_the_same_step_has_a_recording_of_its_own(tmp_path: Path) -> None:
    first = [begin(tmp_path, host).parent.parent for host in ("a", "b")]
    second = [begin(tmp_path, host).parent.parent for host in ("b", "a")]
    assert first[0] == first[1] != second[0] == second[1]


def test_nobody_joins_a_job_that_is_over_or_was_killed(tmp_path: Path) -> None:
    folder = begin(tmp_path, "a").parent.parent
    write_json(folder / END, {})
    again = begin(tmp_path, "b").parent.parent
    assert again != folder
    old = time.time() - FRESH - 1
    for path in (again, *again.glob(f"{HOSTS}/*/{INFO}")):
        os.utime(path, (old, old))
    assert begin(tmp_path, "c").parent.parent not in (folder, again)


def test_a_folder_that_the_user_names_is_joined_only_by_its_own_job(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    join(folder, "a")
    join(folder, "b")
    for host, key in (("c", "slurm c 2.0 0"), ("b", KEY)):
        with pytest.raises(OccupiedError):
            join(folder, host, key)
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").touch()
    with pytest.raises(OccupiedError):
        join(other, "a")


def test_recordings_of_one_job_are_known_by_key_time_and_hosts(tmp_path: Path) -> None:
    for name, host, key, started in (
        ("a", "a", KEY, 1000.0),
        ("b", "b", KEY, 1010.0),
        ("later", "c", KEY, 5000.0),
        ("again", "a", KEY, 1000.0),
        ("copy", "a", KEY, 1000.0),
        ("other", "b", "slurm c 9.0 0", 1000.0),
    ):
        part = join(tmp_path / name, host, key, started, pid=8 if name == "again" else 7)
        write_json(part / END, {"exit_code": 0, "ended": started + 100})
    one = tmp_path / "a"
    assert are_of_one_job(one, tmp_path / "b")
    assert are_of_one_job(one, tmp_path / "copy")  # that another node fetched
    for name in ("later", "again", "other"):
        assert not are_of_one_job(one, tmp_path / name)


@pytest.mark.parametrize("ended", [10**400, -1, math.nan, math.inf, "x", None])
def test_an_end_at_no_time_is_no_reason_to_fail(ended: object) -> None:
    """A stranger may have written it."""
    failed = {"exit_code": 1, "ended": 5.0}
    assert combine_ends([{"exit_code": 0, "ended": ended}, failed])["exit_code"] == 1
