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
    join_recording,
)
from mgpu_doctor.recording.layout import END, HOSTS, INFO
from mgpu_doctor.recording.write import OccupiedError, write_json

KEY = "slurm c 1.0 0"


def begin(home: Path, host: str, key: str = KEY) -> Path:
    """What `run` does on a host: its part of the recording."""
    folder = claim_recording(key, "train", time.time(), host, {"MGPU_DOCTOR_HOME": str(home)})
    return join(folder, host, key)


def join(folder: Path, host: str, key: str = KEY, started: float = 1000.0) -> Path:
    info = {JOINT: key, "host": host, "started": started}
    part, _ = join_recording(folder, info, key, host)
    write_json(part / INFO, info)
    return part


def test_the_first_node_makes_the_recording_and_the_others_join_it(tmp_path: Path) -> None:
    parts = [begin(tmp_path, host) for host in ("a", "b", "c")]
    assert len({part.parent.parent for part in parts}) == 1
    folder = parts[0].parent.parent
    assert json.loads((folder / INFO).read_text())["host"] == "a"
    assert [host for host, _, end in find_parts(folder) if end is None] == ["a", "b", "c"]
    assert begin(tmp_path, "a", "slurm c 2.0 0").parent.parent != folder


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
        ("other", "b", "slurm c 9.0 0", 1000.0),
    ):
        part = join(tmp_path / name, host, key, started)
        write_json(part / END, {"exit_code": 0, "ended": started + 100})
    one = tmp_path / "a"
    assert are_of_one_job(one, tmp_path / "b")
    for name in ("later", "again", "other"):
        assert not are_of_one_job(one, tmp_path / name)


@pytest.mark.parametrize("ended", [10**400, -1, math.nan, math.inf, "x", None])
def test_an_end_at_no_time_is_no_reason_to_fail(ended: object) -> None:
    """A stranger may have written it."""
    failed = {"exit_code": 1, "ended": 5.0}
    assert combine_ends([{"exit_code": 0, "ended": ended}, failed])["exit_code"] == 1
