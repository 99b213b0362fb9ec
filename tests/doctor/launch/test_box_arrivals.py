"""Ranks that come and go between two listings of processes: how they ended is still recorded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mgpu_doctor.launch import process_watch
from mgpu_doctor.launch.box_arrivals import BoxArrivals
from mgpu_doctor.launch.process_watch import Watch
from mgpu_doctor.launch.run_recording import RunRecording
from mgpu_doctor.recording import layout
from tests.support.launching import eventually, read_lines

FORKS_A_RANK = """
import os, signal, sys
boxes = sys.argv[1]
os.read(0, 1)
rank = os.fork()
if not rank:
    open(f"{boxes}/temporary", "x").close()
    os.rename(f"{boxes}/temporary", f"{boxes}/rank.box")
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGBUS)
print(rank, flush=True)
os.waitid(os.P_PID, rank, os.WEXITED | os.WNOWAIT)
os.read(0, 1)
"""
"""A launcher that does each thing once a byte has come."""


def test_a_short_lived_rank_is_seen_as_soon_as_its_box_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_watch, "_FIRST_LOOK", 1e5)  # no second look by the clock
    monkeypatch.setattr(process_watch, "interval", lambda _: 1e5)
    recording = RunRecording.begin(tmp_path / "recording", {})
    host = tmp_path / "recording" / layout.HOSTS / recording.host
    launcher = subprocess.Popen(
        [sys.executable, "-c", FORKS_A_RANK, str(recording.boxes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    )
    assert launcher.stdin is not None
    assert launcher.stdout is not None
    watch = Watch(recording, launcher.pid)
    watch.start()
    eventually("the first look", (host / layout.HOST_SAMPLES).exists)
    launcher.stdin.write(b".")
    rank = int(launcher.stdout.readline())
    eventually("the rank", lambda: watch.knows(rank))
    launcher.stdin.write(b".")
    eventually("its end", (host / layout.EXITS).exists)
    launcher.stdin.write(b".")
    watch.finish(launcher.wait())
    ends = {line["pid"]: line["signal"] for line in read_lines(host / layout.EXITS)}
    assert ends == {rank: signal.SIGBUS, launcher.pid: None}


def test_what_arrives_is_noticed_once_and_a_missing_folder_never(tmp_path: Path) -> None:
    arrivals = BoxArrivals(tmp_path)
    assert not arrivals.take()
    (tmp_path / "first.box").touch()
    (tmp_path / "second.box").touch()
    assert arrivals.take()
    assert not arrivals.take()
    arrivals.close()
    for nowhere in (None, tmp_path / "absent", tmp_path / "first.box"):
        before = len(os.listdir("/proc/self/fd"))
        arrivals = BoxArrivals(nowhere)
        assert arrivals.descriptor is None
        assert not arrivals.take()
        arrivals.close()
        assert len(os.listdir("/proc/self/fd")) == before
