"""The process of one trial: runs the job under observation, in a private view where that is asked
for. A program of its own, because `observe` takes over the signals of its process.

`python -m mgpu_doctor.treat.trial_process REQUEST` reads REQUEST, a JSON file; see `TrialRequest`.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypedDict

import psutil

from mgpu_doctor.launch.job_command import CannotStartError
from mgpu_doctor.launch.observe import observe
from mgpu_doctor.launch.private_view import view_command
from mgpu_doctor.treat.treatment_file import treated_environment
from mgpu_doctor.treat.trial_folder import hold

OFFLINE = {
    "WANDB_MODE": "offline",
    "COMET_MODE": "offline",  # read by transformers; the next two by comet_ml
    "COMET_START_ONLINE": "0",
    "COMET_AUTO_LOG_DISABLE": "1",  # also of `Experiment`, which has no offline mode
    "NEPTUNE_MODE": "offline",
    "CLEARML_OFFLINE_MODE": "1",
    "MLFLOW_ALLOW_FILE_STORE": "true",  # else MLflow 3 refuses files
}
"""Variables by which experiment trackers send nothing."""
UNREACHABLE = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",  # older versions of datasets do not read the one before
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
}
"""Variables by which a job without a network does not wait for servers that it cannot reach, 23 s
for each file of the Hugging Face hub (huggingface_hub 2.4) and minutes for MLflow: cached files are
taken at once, and what is missing fails at once."""
_OF_ANOTHER_STORE = ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", "MLFLOW_REGISTRY_URI")
"""Variables that name what MLflow's usual store has."""
_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG, prctl(2): no trial outlives a session that was killed
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER, prctl(2)
_SESSION_IS_GONE = 1
_PATIENCE = 10.0
_POLL = 0.05
_SELDOM = 1.0


class TrialRequest(TypedDict):
    """A trial, as JSON."""

    command: list[str]
    recording: str
    """A new or empty folder."""
    scratch: str
    """An empty folder for the private view; empty: the job runs without one."""
    values: dict[str, bool | int]
    """Treatments of the catalogue."""
    blocks: tuple[int, int, bool] | None
    """First step and length of the blocks in which they are off and on, and whether the order is
    inverted; None: always on."""
    session_pid: int
    """The process that measures the trial and ends it."""
    session_folder: str
    """Its folder, which holds all its trials."""


def offline_environment(
    environment: Mapping[str, str], store: Path, *, private: bool
) -> dict[str, str]:
    """The environment of a trial: experiment trackers send nothing, and MLflow writes into `store`.
    `private`: whether the job has no network."""
    kept = {name: text for name, text in environment.items() if name not in _OF_ANOTHER_STORE}
    own = {**OFFLINE, "MLFLOW_TRACKING_URI": store.as_uri(), **(UNREACHABLE if private else {})}
    return {**kept, **own}


def adopt_orphans() -> None:
    """Lets orphans of what this process starts become its children, so that it can end them."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


def kill_children(pid: int, first: Callable[[], None] = lambda: None) -> bool:
    """Kills all that a process has started; whether there was anything left of it. `first`: called
    just before, when it is known what there is."""
    try:
        children = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        children = []
    first()
    for child in children:
        with suppress(psutil.NoSuchProcess):
            child.kill()
    return bool(children)


def end_children() -> None:
    """Kills all that this process has started, until nothing is left: what is killed may just be
    starting more."""
    ends = time.monotonic() + _PATIENCE
    while kill_children(os.getpid()) and time.monotonic() < ends:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(_POLL)


def outlive(request: TrialRequest) -> None:
    """Waits for the end of a session that was killed, and kills the job, which may ignore that it
    is asked to end. Does not wait for a process that the kernel keeps from ending, such as one that
    waits for a file server: it ends without us."""
    while not _is_abandoned(request):
        time.sleep(_SELDOM)
    ends = time.monotonic() + _PATIENCE
    while kill_children(os.getpid()) and time.monotonic() < ends:
        time.sleep(_POLL)
    _clean_up(request)
    os._exit(_SESSION_IS_GONE)


def _is_abandoned(request: TrialRequest) -> bool:
    return os.getppid() != request["session_pid"]


def _clean_up(request: TrialRequest) -> None:
    """Removes what a session that was killed has left: the trial that runs is its last one."""
    if _is_abandoned(request):
        shutil.rmtree(request["session_folder"], ignore_errors=True)


def main(arguments: Sequence[str]) -> int:
    """Runs the trial; its exit code is the job's."""
    adopt_orphans()
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGTERM, 0, 0, 0)
    request: TrialRequest = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    hold(Path(request["session_folder"]))  # until this process ends
    if _is_abandoned(request):  # it was killed before it could be noticed
        return _SESSION_IS_GONE
    recording = Path(request["recording"])
    private = bool(request["scratch"])
    try:
        observed = observe(
            request["command"],
            directory=recording,
            kind="run",
            environment=treated_environment(
                offline_environment(
                    os.environ, recording.with_name("mlflow").absolute(), private=private
                ),
                request["values"],
                request["blocks"],
            ),
            starter=view_command(Path(request["scratch"]), recording) if private else (),
            meanwhile=lambda _: outlive(request),
        )
    except CannotStartError as error:
        print(error, file=sys.stderr)
        return error.code
    finally:
        end_children()
        _clean_up(request)
    return observed.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
