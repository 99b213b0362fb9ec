"""The kept recordings as a table or JSON, and one recording as a card."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Sequence

from rich.cells import cell_len

from mgpu_doctor.formatting import UNKNOWN, format_bytes, format_count, format_seconds
from mgpu_doctor.recording.kept_recordings import Kept
from mgpu_doctor.report import text

SCHEMA = "mgpu-doctor/runs/1"


def table(recordings: Sequence[Kept], width: int) -> str:
    """Returns one line per recording, and their total size. An id shows when the recording
    started."""
    rows = [
        (
            text.line(recording.id),
            _format_duration(recording),
            recording.state,
            str(recording.boxes),
            format_bytes(recording.size),
        )
        for recording in recordings
    ]
    head = ("recording", "took", "ended", "boxes", "size")
    widths = [max(map(cell_len, column)) for column in zip(head, *rows, strict=True)]
    lines = []
    for row, recording in zip([head, *rows], [None, *recordings], strict=True):
        cells = "  ".join(
            cell + " " * (wide - cell_len(cell)) for cell, wide in zip(row, widths, strict=True)
        )
        command = "command" if recording is None else _command(recording, short=True)
        room = width - sum(widths) - 2 * len(widths)
        lines.append(
            f"{cells}  {text.cut(command, room)}".rstrip() if room >= 8 else cells.rstrip()
        )
    lines.append(f"{format_count(len(recordings), 'recording')}, {_total_size(recordings)}")
    return "\n".join(lines) + "\n"


def card(recording: Kept, reference: str) -> str:
    """Returns all that is known without a diagnosis. `reference`: a name that other verbs
    accept."""
    rows = (
        ("recording", str(recording.folder)),
        ("command", _command(recording)),
        ("in", recording.cwd or UNKNOWN),
        ("host", recording.host or UNKNOWN),
        ("started", _format_time(recording.started)),
        ("took", _format_duration(recording)),
        ("ended", recording.state),
        ("boxes", str(recording.boxes)),
        ("size", format_bytes(recording.size)),
    )
    facts = "".join(f"{name:<11}{text.line(value)}\n" for name, value in rows)
    name = text.line(shlex.quote(reference))
    return f"{facts}\nmgpu-doctor diagnose {name}\nmgpu-doctor top --replay {name}\n"


def as_json(recordings: Sequence[Kept]) -> str:
    """One object: `schema` and `runs`, newest first; null is unknown."""
    listed = [
        {
            "id": recording.id,
            "folder": str(recording.folder),
            "kind": recording.kind,
            "command": list(recording.command),
            "cwd": recording.cwd,
            "host": recording.host,
            "started": recording.started,
            "ended": recording.ended,
            "exit_code": recording.exit_code,
            "signal": recording.signal,
            "running": recording.alive,
            "boxes": recording.boxes,
            "bytes": recording.size,
        }
        for recording in recordings
    ]
    return json.dumps({"schema": SCHEMA, "runs": listed}, indent=2) + "\n"


def _total_size(recordings: Sequence[Kept]) -> str:
    return f"{format_bytes(sum(recording.size for recording in recordings))} on the disk"


def _command(recording: Kept, *, short: bool = False) -> str:
    """`short`: without the program's folder, to save room."""
    if not recording.command:
        return "GPUs and host" if recording.kind == "watch" else UNKNOWN
    program = os.path.basename(recording.command[0]) if short else recording.command[0]
    return text.line(shlex.join([program, *recording.command[1:]]))


def _format_time(moment: float | None) -> str:
    return UNKNOWN if moment is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(moment))


def _format_duration(recording: Kept) -> str:
    if recording.started is None or recording.ended is None:
        return UNKNOWN
    return format_seconds(max(0.0, recording.ended - recording.started))
