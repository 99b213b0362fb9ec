"""Which recordings are kept; live ones are never removed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mgpu_probes.outside import processes

from mgpu_doctor.recording.kept_recordings import Kept, all_kept, one_kept
from mgpu_doctor.recording.retention import (
    GOING,
    VARIABLE,
    bound,
    remove,
    seconds_of,
    size_of,
    superfluous,
    tidy,
)

DAY = 86_400.0
NOW = 1.8e9
Make = Callable[..., Path]


def kept_recording(number: int, **changes: Any) -> Kept:
    facts: dict[str, Any] = {
        "folder": Path(f"/runs/{number:04}"),
        "kind": "run",
        "command": ("python", "train.py"),
        "cwd": None,
        "host": None,
        "started": NOW - number * DAY,
        "ended": NOW - number * DAY + 60,
        "exit_code": 0,
        "signal": None,
        "boxes": 2,
        "size": 10,
        "changed": NOW - number * DAY + 60,
        "alive": False,
    }
    return Kept(**{**facts, **changes})


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Makes a recording in the home of `environment(tmp_path)`."""

    def made(name: str, age: float = 3 * DAY, *, size: int = 4096, **info: Any) -> Path:
        folder = tmp_path / "runs" / name
        (folder / "hosts/a/boxes").mkdir(parents=True)
        (folder / "hosts/a/boxes/a.1.0.box").write_bytes(os.urandom(size))
        (folder / "recording.json").write_text(json.dumps({"started": NOW - age, **info}))
        (folder / "end.json").write_text(json.dumps({"exit_code": 0, "ended": NOW - age + 9}))
        for path in (*folder.rglob("*"), folder):
            os.utime(path, (NOW - age, NOW - age))
        return folder

    return made


def environment(tmp_path: Path, **more: str) -> Mapping[str, str]:
    return {"MGPU_DOCTOR_HOME": str(tmp_path), **more}


def test_the_oldest_go_until_the_rest_is_small_enough() -> None:
    listed = [kept_recording(number) for number in range(6)]
    assert [finding.id for finding in superfluous(listed, NOW, most=35)] == ["0005", "0004", "0003"]
    assert [finding.id for finding in superfluous(listed, NOW, keep=5)] == ["0005"]
    assert [finding.id for finding in superfluous(listed, NOW, older=3.5 * DAY)] == ["0005", "0004"]
    assert superfluous(listed, NOW) == []


@given(st.lists(st.tuples(st.integers(0, 100), st.booleans()), max_size=12), st.integers(0, 300))
def test_what_is_alive_stays_and_the_rest_is_within_the_bound(
    listed: list[tuple[int, bool]], most: int
) -> None:
    every = [
        kept_recording(number, size=size, alive=alive)
        for number, (size, alive) in enumerate(listed)
    ]
    going = superfluous(every, NOW, most=most)
    assert not any(one.alive for one in going)
    left = [one for one in every if one not in going]
    assert sum(one.size for one in left) <= most or all(one.alive for one in left)


def test_what_is_over_the_bound_goes_but_nothing_young(tmp_path: Path, make: Make) -> None:
    make("old", 9 * DAY)
    make("older", 12 * DAY)
    make("young", DAY / 2)
    gone = tidy(NOW, environment(tmp_path, **{VARIABLE: "1KiB"}))
    assert [one.id for one in gone] == ["older", "old"]
    assert [recording.id for recording in all_kept(environment(tmp_path))] == ["young"]


def test_a_job_that_runs_is_alive(tmp_path: Path, make: Make) -> None:
    folder = make("running", 90 * DAY, job_pid=os.getpid(), host=os.uname().nodename)
    (folder / "end.json").unlink()
    found = one_kept(folder)
    assert found is not None
    assert found.alive
    assert found.state == "running"
    assert tidy(NOW, environment(tmp_path, **{VARIABLE: "0"})) == []
    ticks = processes.find_start_ticks(os.getpid())
    assert ticks is not None
    reused = {"job_pid": os.getpid(), "job_start_ticks": ticks - 1, "host": os.uname().nodename}
    (folder / "recording.json").write_text(json.dumps(reused))
    found = one_kept(folder)
    assert found is not None
    assert not found.alive, "another process has its number"


def test_of_another_host_one_without_an_end_counts_as_alive_while_it_changes(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make("far", 0, host="elsewhere")
    (folder / "end.json").unlink()
    for later, alive in ((3600, True), (3 * DAY, False)):
        monkeypatch.setattr("time.time", lambda later=later: NOW + later)
        found = one_kept(folder)
        assert found is not None
        assert found.alive is alive


def test_links_are_neither_listed_nor_followed(tmp_path: Path, make: Make) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    folder = make("linked", 9 * DAY)
    (folder / "console").symlink_to(outside)
    (tmp_path / "runs/link").symlink_to(folder)
    assert [recording.id for recording in all_kept(environment(tmp_path))] == ["linked"]
    tidy(NOW, environment(tmp_path, **{VARIABLE: "0"}))
    assert not folder.exists()
    assert (outside / "precious").exists()


def test_what_is_half_gone_is_no_recording_and_goes_the_next_time(
    tmp_path: Path, make: Make
) -> None:
    folder = make("broken")
    half = folder.rename(folder.with_name(f"{GOING}broken"))
    (half / "recording.json").unlink()
    assert all_kept(environment(tmp_path)) == []
    tidy(NOW, environment(tmp_path))
    assert not half.exists()


def test_what_cannot_be_removed_is_reported(make: Make) -> None:
    one = one_kept(make("gone"))
    assert one is not None
    gone, left = remove([replace(one, folder=one.folder.with_name("never"))])
    assert gone == []
    assert left[0][1] == "No such file or directory"


def test_hostile_files_are_only_unknown(tmp_path: Path, make: Make) -> None:
    folder = make("odd")
    for content in ("[" * 100_000, '{"command": 3, "started": true, "host": []}', "\0", "null"):
        (folder / "recording.json").write_text(content)
        found = one_kept(folder)
        assert found is not None
        assert (found.command, found.started, found.host) == ((), None, None)
    assert one_kept(tmp_path) is None


@pytest.mark.parametrize(
    ("expected", "bytes_"),
    [("20GiB", 20 << 30), ("500 MB", 500 << 20), ("4096", 4096), ("1.5k", 1536), ("x", None)],
)
def test_sizes(expected: str, bytes_: int | None) -> None:
    assert size_of(expected) == bytes_


def test_ages_and_bounds() -> None:
    assert (seconds_of("30d"), seconds_of("12 h"), seconds_of("3x")) == (30 * DAY, 43_200.0, None)
    assert bound({}) == 8 << 30
    assert bound({VARIABLE: "all"}) is None
    assert bound({VARIABLE: "1GiB"}) == 1 << 30
