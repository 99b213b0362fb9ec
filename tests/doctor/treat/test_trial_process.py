"""The process of a trial: nothing is sent to experiment trackers, and it does not outlive its
session."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mgpu_doctor.treat import trial_process
from mgpu_doctor.treat.trial_process import (
    OFFLINE,
    UNREACHABLE,
    TrialRequest,
    offline_environment,
)

OWN = {
    "MLFLOW_TRACKING_URI": "https://tracking.example",
    "MLFLOW_RUN_ID": "1",
    "WANDB_MODE": "online",
    "HF_HOME": "/cache",
}


def test_trackers_write_into_the_trial() -> None:
    private = offline_environment(OWN, Path("/trial/mlflow"), private=True)
    store = {"MLFLOW_TRACKING_URI": "file:///trial/mlflow", "HF_HOME": "/cache"}
    assert private == OFFLINE | UNREACHABLE | store


def test_a_job_with_a_network_may_load_what_is_not_cached() -> None:
    in_the_open = offline_environment(OWN, Path("/trial/mlflow"), private=False)
    assert not UNREACHABLE.keys() & in_the_open.keys()
    assert in_the_open["WANDB_MODE"] == "offline"


class ExitedError(Exception):
    """Stands for the end of the process."""


def test_a_trial_ends_although_a_process_of_it_cannot_be_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may keep it from ending, as one that waits for a file server."""

    def leave(code: int) -> None:
        raise ExitedError(code)

    monkeypatch.setattr(trial_process, "kill_children", lambda _: True)
    monkeypatch.setattr(trial_process, "_PATIENCE", 0.2)
    monkeypatch.setattr(os, "_exit", leave)
    folder = tmp_path / "session"
    folder.mkdir()
    request: TrialRequest = {
        "command": [],
        "recording": "",
        "scratch": "",
        "values": {},
        "blocks": None,
        "session_pid": os.getpid(),  # not our parent: it is gone
        "session_folder": str(folder),
    }
    with pytest.raises(ExitedError):
        trial_process.outlive(request)
    assert not folder.exists()
