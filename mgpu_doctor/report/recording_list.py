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


def table(kept: Sequence[Kept], width: int) -> str:
    """Returns one line per recording, and their total size. An id shows when the recording
    started."""
    rows = [
        (text.line(one.id), _lasted(one), one.state, str(one.boxes), format_bytes(one.size))
        for one in kept
    ]
    head = ("recording", "took", "ended", "boxes", "size")
    widths = [max(map(cell_len, column)) for column in zip(head, *rows, strict=True)]
    lines = []
    for row, one in zip([head, *rows], [None, *kept], strict=True):
        cells = "  ".join(
            cell + " " * (wide - cell_len(cell)) for cell, wide in zip(row, widths, strict=True)
        )
        what = "command" if one is None else _command(one, short=True)
        room = width - sum(widths) - 2 * len(widths)
        lines.append(f"{cells}  {text.cut(what, room)}".rstrip() if room >= 8 else cells.rstrip())
    lines.append(f"{format_count(len(kept), 'recording')}, {_together(kept)}")
    return "\n".join(lines) + "\n"


def card(kept: Kept, reference: str) -> str:
    """Returns all that is known without a diagnosis. `reference`: a name that other verbs
    accept."""
    rows = (
        ("recording", str(kept.folder)),
        ("command", _command(kept)),
        ("in", kept.cwd or UNKNOWN),
        ("host", kept.host or UNKNOWN),
        ("started", _clock(kept.started)),
        ("took", _lasted(kept)),
        ("ended", kept.state),
        ("boxes", str(kept.boxes)),
        ("size", format_bytes(kept.size)),
    )
    facts = "".join(f"{name:<11}{text.line(value)}\n" for name, value in rows)
    name = text.line(shlex.quote(reference))
    return f"{facts}\nmgpu-doctor diagnose {name}\nmgpu-doctor top --replay {name}\n"


def as_json(kept: Sequence[Kept]) -> str:
    """One object: `schema` and `runs`, newest first; null is unknown."""
    listed = [
        {
            "id": one.id,
            "folder": str(one.folder),
            "kind": one.kind,
            "command": list(one.command),
            "cwd": one.cwd,
            "host": one.host,
            "started": one.started,
            "ended": one.ended,
            "exit_code": one.exit_code,
            "signal": one.signal,
            "running": one.alive,
            "boxes": one.boxes,
            "bytes": one.size,
        }
        for one in kept
    ]
    return json.dumps({"schema": SCHEMA, "runs": listed}, indent=2) + "\n"


def _together(kept: Sequence[Kept]) -> str:
    return f"{format_bytes(sum(one.size for one in kept))} on the disk"


def _command(kept: Kept, *, short: bool = False) -> str:
    """`short`: without the program's folder, to save room."""
    if not kept.command:
        return "GPUs and host" if kept.kind == "watch" else UNKNOWN
    program = os.path.basename(kept.command[0]) if short else kept.command[0]
    return text.line(shlex.join([program, *kept.command[1:]]))


def _clock(at: float | None) -> str:
    return UNKNOWN if at is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def _lasted(kept: Kept) -> str:
    if kept.started is None or kept.ended is None:
        return UNKNOWN
    return format_seconds(max(0.0, kept.ended - kept.started))
