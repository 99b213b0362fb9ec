"""Jobs of Ray on this machine alone, with a token."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil


def doctor(verb: str, recording: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "mgpu_doctor", verb, "--dir", str(recording), *words]


def refused(recording: Path) -> bool:
    """Whether Ray is not here, in which case the trainer must say so and how to get it."""
    if importlib.util.find_spec("ray") is not None:
        return False
    told = subprocess.run(
        doctor("train", recording, "ray-torch"), capture_output=True, text=True, check=False
    )
    assert told.returncode == 2
    assert "pip install 'ray[train]'" in told.stderr
    warnings.warn("Ray is not installed: nothing was trained with it", stacklevel=2)
    return True


def of(folder: Path) -> list[str]:
    """The names of the processes that run for a job with a recording in this folder."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if any(str(folder) in value for value in process.environ().values()):
                found.append(process.name())
    return found


@contextmanager
def settings(folder: Path) -> Iterator[dict[str, str]]:
    """The environment of a script of a user's: Ray listens here alone, asks for a token, and knows
    no cluster that others have left behind."""
    (folder / "token").write_text("0123456789abcdef" * 4)
    (folder / "token").chmod(0o600)
    with tempfile.TemporaryDirectory(prefix="ray-") as short:  # as paths of sockets must be
        yield {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(folder / "token"),
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on Linux, too: loopback alone
            "RAY_TMPDIR": short,
            "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "300",
            "RAY_USAGE_STATS_ENABLED": "0",
        }


def env(settings: Mapping[str, str], command: Sequence[str]) -> list[str]:
    """The command with this environment."""
    return ["env", *(f"{name}={value}" for name, value in settings.items()), *command]
