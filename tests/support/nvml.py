"""Ask the GPU probe, in a process of its own that loads the pretend NVML library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fakenvml.scenarios import Box

_SAMPLE = """
import json, os, sys
from mgpu_probes.outside.devices import Devices
devices = Devices()
for line in sys.stdin:
    os.replace(line.strip(), os.environ["FAKENVML_STATE"])
    print(json.dumps(devices.sample()))
"""


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

    def samples(self, state: Path, *boxes: Box) -> list[dict[str, Any]]:
        """What one `Devices` reads when the machine is each of `boxes` in turn."""
        names = []
        for place, box in enumerate(boxes):
            names.append(state.with_suffix(f".{place}"))
            box.write(str(names[-1]))
        done = subprocess.run(
            [sys.executable, "-c", _SAMPLE],
            input="".join(f"{name}\n" for name in names),
            env=self.environment(state),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]
