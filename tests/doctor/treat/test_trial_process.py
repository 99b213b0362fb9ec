"""The environment of a trial: nothing is sent to experiment trackers."""

from __future__ import annotations

from pathlib import Path

from mgpu_doctor.treat.trial_process import OFFLINE, UNREACHABLE, offline_environment

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
