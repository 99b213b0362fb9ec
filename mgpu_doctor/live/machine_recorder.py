"""`top --record`: records what a machine does, as a recording without a job.

A full disk ends the recording, and the header of the screen says so; the screen goes on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from mgpu_doctor import __version__
from mgpu_doctor.case.device_samples import DeviceSample
from mgpu_doctor.case.host_samples import HostSample
from mgpu_doctor.recording import layout
from mgpu_doctor.recording.device_lines import DeviceLines
from mgpu_doctor.recording.write import Lines, create, private_folder, write_json

LIMIT = 16 << 20
"""Bytes of a file of samples; a longer one keeps every second line, evenly."""


class Recorder:
    """Starts a recording in `folder`. Raises `write.OccupiedError` if the folder is not empty, and
    `OSError` if it cannot be written."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        folder = Path(os.path.abspath(folder))
        create(folder)
        host = os.uname().nodename.replace("/", "_") or "localhost"
        place = private_folder(folder / layout.HOSTS / host)
        info = {
            "schema": layout.SCHEMA,
            "id": folder.name,
            "kind": layout.WATCH,
            "host": host,
            "started": clock(),
            "doctor_pid": os.getpid(),
            "doctor_version": __version__,
            "probe": False,
        }
        write_json(folder / layout.INFO, info)
        self.folder = folder
        self._trouble: str | None = None
        self._devices = DeviceLines(place / layout.DEVICE_SAMPLES, LIMIT)
        self._host = Lines(place / layout.HOST_SAMPLES, LIMIT, samples=True)

    @property
    def state(self) -> str:
        """A few words for the header of the screen."""
        if self._trouble is None:
            return f"recording to {self.folder.name}"
        return f"NOT recording to {self.folder.name}: {self._trouble}"

    def write(self, devices: DeviceSample | None, host: HostSample | None) -> None:
        """Adds samples. `state` shows a failure until a later sample can be written."""
        try:
            if devices is not None:
                line = msgspec.to_builtins(devices)
                del line["host"]  # the folder says so
                self._devices.append(line)
            if host is not None:
                self._host.append(_host(host))
        except OSError as error:
            self._trouble = error.strerror or str(error)
        else:
            self._trouble = None


def _host(sample: HostSample) -> dict[str, Any]:
    """Returns a line of host.jsonl, without the samples of single tasks."""
    left_out = ("tasks", "groups")
    values = structs.asdict(sample).items()
    return {name: value for name, value in values if value is not None and name not in left_out}
