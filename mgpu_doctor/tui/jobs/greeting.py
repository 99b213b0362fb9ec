"""The greeting without a job: the keys that start one, and what this machine has."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import dataclass

from rich.text import Text

from mgpu_doctor.formatting import UNKNOWN, format_bytes, format_count
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
LABEL = 12
KEY = "bold cyan"
KEYS = (
    ("n", "start a built-in trainer, optionally with an injected fault"),
    ("a", "attach to a training job on this machine, observed or not"),
)
REPLAY_KEY = "p"


@dataclass(frozen=True, slots=True)
class Greeting:
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
        """Returns the greeting's lines; empty while a job is shown. The keys come first, in case a
        screen full of GPUs has no room for more."""
        if frame.diagnosis is not None:
            return []
        again = () if self.last is None else (f"replay the last recording: {self.last}",)
        keys = (*KEYS, *((REPLAY_KEY, does) for does in again))
        facts = (
            ("elsewhere", "jobs started by mgpu-doctor run -- COMMAND appear here"),
            ("", ""),
            ("GPUs", _gpus(frame)),
            ("host", _host(frame)),
            (
                "frameworks",
                ", ".join(self.frameworks) or "none in this Python; jobs may use another",
            ),
        )
        made = [_row(*row, style) for rows, style in ((keys, KEY), (facts, DIM)) for row in rows]
        for line in made:
            line.truncate(max(1, width), overflow="ellipsis")
        return made


def _row(label: str, value: str, style: str) -> Text:
    return Text.assemble((f"{label:<{LABEL}}", style), text.line(value))


def _gpus(frame: Frame) -> str:
    sample = frame.devices
    if sample is None:
        return "not checked yet"
    names: dict[str, int] = {}
    for device in sample.devices:
        name = device.name or "a GPU of unknown name"
        names[name] = names.get(name, 0) + 1
    if names:
        return ", ".join(f"{many} x {name}" if many > 1 else name for name, many in names.items())
    return sample.trouble or "none"


def _host(frame: Frame) -> str:
    host = frame.host
    if host is None:
        return "not checked yet"
    cores = f"{UNKNOWN} cores" if host.cores is None else format_count(host.cores, "core")
    return f"{cores}, {format_bytes(host.memory_total)} of memory"


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
