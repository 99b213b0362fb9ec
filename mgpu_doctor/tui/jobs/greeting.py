"""The greeting without a job: the keys that start one, and the frameworks of this Python."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import NamedTuple

from rich.text import Text

from mgpu_doctor.live.frame import Frame
from mgpu_doctor.recording.home import latest
from mgpu_doctor.report import text
from mgpu_doctor.tui.panels.table_cells import DIM
from mgpu_doctor.tui.view import View

FRAMEWORKS = (
    "torch",
    "tensorflow",
    "tensorflow-cpu",
    "jax",
    "lightning",
    "accelerate",
    "deepspeed",
)
KEY = "bold cyan"
KEYS = (("n", "start a trainer"), ("a", "attach to a running job"))
REPLAY_KEY = "p"


class Greeting(NamedTuple):
    """Draws the greeting. `frameworks`: those of this Python, with versions. `last`: the name of
    the newest recording."""

    frameworks: tuple[str, ...]
    last: str | None

    @classmethod
    def of_this_machine(cls) -> Greeting:
        """Returns the greeting for this machine. Looked up once, without importing frameworks."""
        last = latest()
        return cls(_frameworks(), last.name if last is not None else None)

    def lines(self, frame: Frame, width: int, _view: View) -> list[Text]:
        """Returns the greeting's lines; empty while a job is shown."""
        if frame.diagnosis is not None:
            return []
        again = () if self.last is None else ((REPLAY_KEY, f"replay {text.line(self.last)}"),)
        keys = Text("   ").join(
            Text.assemble((key, KEY), " ", does) for key, does in (*KEYS, *again)
        )
        known = ", ".join(self.frameworks) or "none in this Python; jobs may use another"
        made = [keys, Text.assemble(("frameworks  ", DIM), (text.line(known), DIM))]
        for line in made:
            line.truncate(max(1, width), overflow="ellipsis")
        return made


def _frameworks() -> tuple[str, ...]:
    """Returns installed frameworks by the names of their `NAME-VERSION.dist-info` folders.
    `importlib.metadata` would take a tenth of the time to the first frame."""
    versions: dict[str, str] = {}
    for folder in sys.path:
        with suppress(OSError):
            for entry in os.listdir(folder or os.curdir):
                if entry.endswith((".dist-info", ".egg-info")):
                    name, _, version = entry.rpartition(".")[0].partition("-")
                    if version:
                        project = name.lower().replace("_", "-")
                        versions.setdefault(project, version.partition("-")[0])
    return tuple(f"{name} {versions[name]}" for name in FRAMEWORKS if name in versions)
