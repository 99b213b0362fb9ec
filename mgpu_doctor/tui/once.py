"""One frame as plain text or JSON, without the live screen."""

from __future__ import annotations

import dataclasses
import io
import json
from typing import Any

from rich.console import Console
from rich.text import Text

from mgpu_doctor.report import json as diagnosis_json
from mgpu_doctor.tui.frame import Frame, View
from mgpu_doctor.tui.panels import findings, gpus, head, heat, host, ranks

SCHEMA = "mgpu-doctor/top/1"
PARTS = (
    (None, head.lines),
    (None, host.lines),
    ("GPUs", gpus.lines),
    ("Ranks", ranks.lines),
    ("Steps", heat.lines),
    ("Findings", findings.lines),
)


def render(frame: Frame, *, width: int, colour: bool) -> str:
    """The frame as lines of at most `width` cells, ending in a newline."""
    out = io.StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=colour,
        color_system="256" if colour else None,
        markup=False,
        emoji=False,
        highlight=False,
        legacy_windows=False,
        _environ={},
    )
    for title, lines in PARTS:
        made = lines(frame, width, View())
        if title and made:
            console.print(Text(f"{title} ".ljust(width, "─"), style="dim"))
        for line in made:
            line.rstrip()
            console.print(line, no_wrap=True, overflow="crop", crop=True)
    return out.getvalue()


def render_json(frame: Frame) -> str:
    """`document(frame)` as indented ASCII JSON that ends in a newline."""
    return json.dumps(document(frame), indent=2, allow_nan=False) + "\n"


def document(frame: Frame) -> dict[str, Any]:
    """The frame as plain JSON types; `diagnosis` is the object of `diagnose --json`, or None."""
    diagnosis = frame.diagnosis
    return {
        "schema": SCHEMA,
        "at": frame.at,
        "source": frame.source,
        "hint": frame.hint,
        "diagnosis": None if diagnosis is None else diagnosis_json.document(diagnosis),
        "devices": None if frame.devices is None else dataclasses.asdict(frame.devices),
        "host": None if frame.host is None else _host(frame),
    }


def _host(frame: Frame) -> dict[str, Any]:
    assert frame.host is not None
    plain = dataclasses.asdict(frame.host)
    plain["processes"] = [
        {"pid": pid, "cpu_seconds": cpu, "resident_bytes": resident}
        for pid, (cpu, resident) in frame.host.processes.items()
    ]
    return plain
