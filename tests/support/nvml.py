"""Ask the GPU probe, in a process of its own that loads the pretend NVML library."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fakenvml.fakenvml import build
from tests.fakenvml.scenarios import Box

_SAMPLE = """
import json, os, sys, time
from mgpu_probes.outside.devices import Devices, driver_polling

driver_polling.SLOW_CALL = 60.0  # who asks may wait for a core: that is no slow driver

def settled(sample):
    traffic = [(one["pcie"] or {}).get("sent") for one in sample["devices"]]
    return None not in traffic and not any(one["trouble"] for one in sample["devices"])

ENOUGH = {"once": lambda sample: True, "settled": settled, "events": lambda one: one["events"]}
devices = Devices(**json.loads(sys.argv[1]))
for line in sys.stdin:
    wanted, name = line.split(maxsplit=1)
    os.replace(name.strip(), os.environ["FAKENVML_STATE"])
    while not ENOUGH[wanted](sample := devices.sample()):
        time.sleep(0.01)
    print(json.dumps(sample))
devices.close()
"""


class Libraries:
    """Each kind of the library, compiled when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._built: dict[tuple[Sequence[str], Sequence[str]], PretendNvml] = {}

    def kind(self, *, hide: Sequence[str] = (), defines: Sequence[str] = ()) -> PretendNvml:
        """As `build` makes it."""
        kind = (tuple(hide), tuple(defines))
        if kind not in self._built:
            assert shutil.which("cc"), "a small C library is built: install a C compiler (gcc)"
            folder = self._folder / str(len(self._built))
            build(folder, hide, defines, optimise=0)
            self._built[kind] = PretendNvml(folder)
        return self._built[kind]


@dataclass(frozen=True)
class PretendNvml:
    """The folder of a built library; machines are asked about by `samples`."""

    folder: Path

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
        lines = []
        for place, box in enumerate(boxes):
            name = state.with_suffix(f".{place}")
            box.write(str(name))
            lines.append(f"{last if place == len(boxes) - 1 else 'once'} {name}\n")
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                _SAMPLE,
                json.dumps({"patience": patience, "slowly": 0, "stays": stays, "details": details}),
            ],
            input="".join(lines),
            env={**self.environment(state), **(environment or {})},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]
