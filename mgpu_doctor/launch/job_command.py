"""Finds and starts the job's command exactly as a shell would, with the probe on its PYTHONPATH."""

from __future__ import annotations

import errno
import importlib.util
import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

NOT_FOUND = 127
NOT_EXECUTABLE = 126


class CannotStartError(Exception):
    """The command cannot be started; `code` is the exit code of a shell in that case."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def find_program(name: str, environment: Mapping[str, str]) -> str:
    """Returns the path of the program that a shell would run for `name`. Raises
    `CannotStartError`."""
    if not name:
        raise CannotStartError("The command is empty.", NOT_FOUND)
    if "/" in name:
        candidates = [name]
    else:
        folders = environment.get("PATH", os.defpath).split(os.pathsep)
        candidates = [os.path.join(folder or ".", name) for folder in folders]
    present = [path for path in candidates if os.path.exists(path)]
    for path in present:
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    if not present:
        raise CannotStartError(f"{name}: command not found.", NOT_FOUND)
    if os.path.isdir(present[0]):
        raise CannotStartError(f"{name} is a folder, not a command.", NOT_EXECUTABLE)
    raise CannotStartError(f"{name} is not executable; try `chmod +x {name}`.", NOT_EXECUTABLE)


def start_program(
    path: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    streams: Mapping[int, int | None],
    signal_mask: Iterable[int],
) -> int:
    """Starts `command` in this process group and session and returns its pid.

    `streams` maps the job's descriptors to ours (None: closed, as it was for us); all others stay
    as they are. Raises `CannotStartError`.
    """
    actions: list[tuple[int, ...]] = []
    for theirs, ours in streams.items():
        actions.append(
            (os.POSIX_SPAWN_CLOSE, theirs) if ours is None else (os.POSIX_SPAWN_DUP2, ours, theirs)
        )
    # Python ignores these two signals from its start; all others are only blocked.
    defaults = [signal.SIGPIPE, signal.SIGXFSZ]
    arguments = [command[0], *command[1:]]
    for program, argv in ((path, arguments), ("/bin/sh", ["sh", path, *command[1:]])):
        try:
            return os.posix_spawn(
                program,
                argv,
                environment,
                file_actions=actions,
                setsigmask=signal_mask,
                setsigdef=defaults,
            )
        except OSError as error:
            if error.errno == errno.ENOEXEC and program == path:
                continue  # a script without `#!`: shells run it themselves
            raise CannotStartError(
                f"{command[0]} cannot be started: {error.strerror}.", NOT_EXECUTABLE
            ) from None
    raise AssertionError("unreachable")


BOXES_VARIABLE = "MGPU_DOCTOR_BOXES"


def job_environment(environment: Mapping[str, str], boxes: Path | None) -> dict[str, str]:
    """Returns `environment` with the probe's folder before the user's own PYTHONPATH.

    `boxes`: where ranks write their black boxes; None: there is no such folder, so no probe."""
    changed = dict(environment)
    if boxes is not None:
        theirs = environment.get("PYTHONPATH")
        changed["PYTHONPATH"] = os.pathsep.join(filter(None, (str(inject_folder()), theirs)))
        changed[BOXES_VARIABLE] = str(boxes)
    return changed


def inject_folder() -> Path:
    """Returns the folder of the modules that every rank imports at its start."""
    spec = importlib.util.find_spec("mgpu_probes")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "inject"
