"""A recording that any process still writes into is never removed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from mgpu_probes.inprocess.blackbox import Writer
from mgpu_probes.outside import processes

from mgpu_doctor.cli import app
from mgpu_doctor.recording.kept_recordings import one_kept
from mgpu_doctor.recording.layout import END, HOSTS, INFO, boxes
from mgpu_doctor.recording.live_recordings import is_living, is_written
from tests.support.launching import doctor, eventually, read_json

OUTLIVES = """
import os, sys, time
from mgpu_probes.inprocess.blackbox import Writer
if os.fork():
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
    os._exit(0)
writer = Writer.open(os.environ["MGPU_DOCTOR_BOXES"], rank=0, world_size=1)
open(sys.argv[1], "w").write(str(os.getpid()))
os.close(1)
os.close(2)
os.setsid()
while True:
    writer.step(time.monotonic_ns(), 10**7, 0, 0, [0.001] * 10)
    time.sleep(0.05)
"""


@pytest.fixture
def outlived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, int]]:
    """A recording whose job's first process has ended, and a child of it that writes its box."""
    monkeypatch.setenv("MGPU_DOCTOR_HOME", str(tmp_path / "home"))
    recording = tmp_path / "home/runs/outlived"
    ready = tmp_path / "ready"
    command = doctor(recording, sys.executable, "-c", OUTLIVES, str(ready))
    assert subprocess.run(command, check=False, timeout=120).returncode == 0
    child = int(ready.read_text())
    yield recording, child
    if processes.is_alive(child):
        os.kill(child, signal.SIGKILL)


def prune() -> None:
    result = CliRunner().invoke(app, ["runs", "prune", "--older", "0s", "--yes"])
    assert result.exit_code == 0, result.output


def test_a_child_that_still_writes_keeps_the_recording(outlived: tuple[Path, int]) -> None:
    recording, child = outlived
    assert (recording / END).exists()
    assert not is_living(recording)
    assert is_written(recording)
    kept = one_kept(recording)
    assert kept is not None
    assert (kept.alive, kept.state) == (True, "running")
    prune()
    assert recording.exists()
    os.kill(child, signal.SIGKILL)
    eventually("its end", lambda: not processes.is_alive(child))
    assert not is_written(recording)
    prune()
    assert not recording.exists()


def test_another_process_of_that_number_keeps_nothing(
    outlived: tuple[Path, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its start, and by the boot of the machine: numbers come round."""
    recording, child = outlived
    ticks = processes.find_start_ticks(child)
    assert ticks is not None
    with monkeypatch.context() as patch:
        patch.setattr(processes, "boot_id", lambda: "00000000-0000-0000-0000-000000000000")
        assert not is_written(recording)
    (box,) = recording.glob("hosts/*/boxes/*.box")
    raw = bytearray(box.read_bytes())
    at = bytes(raw).index(ticks.to_bytes(8, sys.byteorder))
    raw[at : at + 8] = (ticks + 1).to_bytes(8, sys.byteorder)
    box.unlink()
    box.write_bytes(raw)
    assert not is_written(recording)


def test_the_doctor_at_its_work_keeps_its_recording(tmp_path: Path) -> None:
    """It diagnoses the recording after the job's end."""
    info = {
        "schema": "mgpu-doctor/recording/1",
        "host": os.uname().nodename,
        "doctor_pid": os.getpid(),
        "doctor_start_ticks": processes.find_start_ticks(os.getpid()),
        "boot_id": processes.boot_id(),
    }
    (tmp_path / END).write_text("{}")
    (tmp_path / INFO).write_text(json.dumps(info))
    assert is_written(tmp_path)
    for changed in (
        {"doctor_start_ticks": 1},
        {"doctor_start_ticks": None},
        {"boot_id": "of another boot"},
        {"host": "elsewhere"},
        {"doctor_pid": "1"},
        {"doctor_pid": -1},
        {"doctor_pid": 1 << 70},
    ):
        (tmp_path / INFO).write_text(json.dumps({**info, **changed}))
        assert not is_written(tmp_path), changed


@pytest.mark.parametrize("text", ["", "[1", "[" * 100_000, '{"job_pid": {}}', '{"host": [1]}'])
def test_damaged_facts_keep_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / INFO).write_text(text)
    assert not is_written(tmp_path)
    assert not is_living(tmp_path)


def test_what_lies_at_the_end_of_a_link_is_not_asked(tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text(json.dumps({"host": os.uname().nodename, "job_pid": 1}))
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / INFO).symlink_to(tmp_path / "real.json")
    assert not is_living(tmp_path / "r")
    (tmp_path / "r" / INFO).unlink()
    os.mkfifo(tmp_path / "r" / INFO)
    assert not is_living(tmp_path / "r")


def test_boxes_at_the_end_of_a_link_keep_nothing(tmp_path: Path) -> None:
    """A process of the reader's that writes elsewhere is no part of a stranger's recording."""
    recording, outside = tmp_path / "job", tmp_path / "outside"
    place = boxes(outside, "host")
    writer = Writer.open(place, rank=0, world_size=1)
    (recording / HOSTS).mkdir(parents=True)
    (recording / INFO).write_text("{}")
    (recording / HOSTS / "host").symlink_to(outside / HOSTS / "host")
    assert not is_written(recording)
    (recording / HOSTS / "host").unlink()
    place.parent.rename(recording / HOSTS / "host")
    assert is_written(recording)
    writer.close()


def test_a_run_notes_who_records_it(tmp_path: Path) -> None:
    assert subprocess.run(doctor(tmp_path / "r", "true"), check=False).returncode == 0
    info = read_json(tmp_path / "r" / INFO)
    assert info["boot_id"] == processes.boot_id()
    assert info["doctor_start_ticks"] > 0
    assert is_written(tmp_path / "r") is False
