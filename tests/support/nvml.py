"""Ask the GPU probe, in a process of its own that loads the pretend NVML library.

A server per library loads the probe once and forks for each question."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fakenvml.fakenvml import build
from tests.fakenvml.scenarios import Box

_SERVER = """
import json, os, sys, time, traceback
from mgpu_probes.outside.devices import Devices, driver_polling

driver_polling.SLOW_CALL = 60.0  # who asks may wait for a core: that is no slow driver

def settled(sample):
    traffic = [(one["pcie"] or {}).get("sent") for one in sample["devices"]]
    return None not in traffic and not any(one["trouble"] for one in sample["devices"])

ENOUGH = {"once": lambda sample: True, "settled": settled, "events": lambda one: one["events"]}

def read(environment, options, machines):
    os.environ.update(environment)
    devices, samples = Devices(**options), []
    for wanted, name in machines:
        os.replace(name, os.environ["FAKENVML_STATE"])
        while not ENOUGH[wanted](sample := devices.sample()):
            time.sleep(0.01)
        assert json.loads(json.dumps(sample)) == sample, "it is ready for JSON"
        samples.append(sample)
    devices.close()
    return samples

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        try:
            answer = {"samples": read(*json.loads(line))}
        except BaseException:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), flush=True)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if status:
        print(json.dumps({"error": f"the reader ended with status {status}"}), flush=True)
"""


class Libraries:
    """Each kind of the library, compiled when a process of the tests first asks for it."""

    def __init__(self, folder: Path) -> None:
        """`folder`: the same in all processes of the tests."""
        self._folder = folder
        self._built: dict[tuple[Sequence[str], Sequence[str]], PretendNvml] = {}

    def kind(self, *, hide: Sequence[str] = (), defines: Sequence[str] = ()) -> PretendNvml:
        """As `build` makes it."""
        kind = (tuple(hide), tuple(defines))
        if kind not in self._built:
            assert shutil.which("cc"), "a small C library is built: install a C compiler (gcc)"
            folder = self._folder / hashlib.sha256(repr(kind).encode()).hexdigest()[:16]
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / "lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not (folder / "built").exists():
                    build(folder, hide, defines, optimise=0)
                    (folder / "built").touch()
            self._built[kind] = PretendNvml(folder)
        return self._built[kind]

    def close(self) -> None:
        for library in self._built.values():
            library.close()


@dataclass(frozen=True)
class PretendNvml:
    """The folder of a built library; machines are asked about by `samples`."""

    folder: Path
    _servers: dict[str | None, subprocess.Popen[str]] = field(default_factory=dict)
    """By PYTHONPATH, which only a new process heeds."""

    def environment(self, state: Path) -> dict[str, str]:
        return {
            **os.environ,
            "LD_LIBRARY_PATH": str(self.folder),
            "FAKENVML_STATE": str(state),
            "FAKENVML_POLL_MS": "0",
        }

    def samples(
        self,
        state: Path,
        *boxes: Box,
        last: str = "once",
        patience: float = 60,
        stays: bool = False,
        details: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> list[dict[str, Any]]:
        """What one `Devices` reads when the machine is each of `boxes` in turn, all of it anew each
        time. `last`: what to wait for on the last machine: `events`, or `settled`: everything
        known."""
        machines = []
        for place, box in enumerate(boxes):
            name = state.with_suffix(f".{place}")
            box.write(str(name))
            machines.append((last if place == len(boxes) - 1 else "once", str(name)))
        options = {"patience": patience, "slowly": 0, "stays": stays, "details": details}
        given = {"FAKENVML_STATE": str(state), **(environment or {})}
        server = self._server(given.get("PYTHONPATH"))
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps((given, options, machines)) + "\n")
        server.stdin.flush()
        answer = json.loads(server.stdout.readline())
        assert "samples" in answer, answer["error"]
        samples: list[dict[str, Any]] = answer["samples"]
        return samples

    def _server(self, pythonpath: str | None) -> subprocess.Popen[str]:
        if pythonpath not in self._servers:
            environment = self.environment(self.folder / f"state-{os.getpid()}")
            if pythonpath is not None:
                environment["PYTHONPATH"] = pythonpath
            self._servers[pythonpath] = subprocess.Popen(
                [sys.executable, "-c", _SERVER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                text=True,
            )
        return self._servers[pythonpath]

    def close(self) -> None:
        for server in self._servers.values():
            server.communicate()
