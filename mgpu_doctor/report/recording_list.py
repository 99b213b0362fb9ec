"""The kept recordings as a table or JSON, and one recording as a card."""

from __future__ import annotations

import json
import shlex
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from rich.cells import cell_len

from mgpu_doctor.formatting import UNKNOWN, format_bytes, format_count, format_seconds
from mgpu_doctor.recording.kept_recordings import Kept
from mgpu_doctor.recording.layout import WATCH
from mgpu_doctor.report import text
from mgpu_doctor.report.command_names import shorten_commands
from mgpu_doctor.report.kept_verdict import format_verdict

SCHEMA = "mgpu-doctor/runs/1"


WIDE = 110
"""Columns from which the number of ranks and the size are shown, too."""
SHORT_ID = len("20261121-120102")
LONGEST_VERDICT = 34
LEAST_COMMAND, USUAL_COMMAND = 8, 22
"""Cells below which no command is shown, and below which verdicts leave out what the finding
costs."""


def table(recordings: Sequence[Kept], width: int) -> str:
    """Returns one line per recording, and their total size. An id, which shows when the recording
    started, is as short as it can be to name it."""
    starts = Counter(recording.id[:SHORT_ID] for recording in recordings)
    wide = width >= WIDE
    head = ("recording", "took", "ended", "verdict", *(("ranks", "size") if wide else ()))
    for costs in (True, False):
        rows = [_cells(recording, starts, wide=wide, costs=costs) for recording in recordings]
        widths = [max(map(cell_len, column)) for column in zip(head, *rows, strict=True)]
        room = width - sum(widths) - 2 * len(widths)
        if room >= USUAL_COMMAND:
            break
    if room >= LEAST_COMMAND:
        commands = ["command", *_shorten_commands(recordings, room)]
    else:
        commands = [""] * (len(recordings) + 1)
    lines = []
    for row, command in zip([head, *rows], commands, strict=True):
        cells = "  ".join(
            cell + " " * (wide - cell_len(cell)) for cell, wide in zip(row, widths, strict=True)
        )
        lines.append(text.cut(f"{cells}  {command}".rstrip(), width))
    lines.append(f"{format_count(len(recordings), 'recording')}, {_total_size(recordings)}")
    return "\n".join(lines) + "\n"


def _cells(recording: Kept, starts: Counter[str], *, wide: bool, costs: bool) -> tuple[str, ...]:
    is_unique = starts[recording.id[:SHORT_ID]] == 1
    shown = recording.id[:SHORT_ID] if is_unique else recording.id
    is_judged = not recording.alive and recording.kind != WATCH
    judged = format_verdict(recording.verdict, costs=costs) if is_judged else ""
    further = (str(recording.boxes), format_bytes(recording.size)) if wide else ()
    return (
        text.line(shown),
        _format_duration(recording),
        recording.state,
        text.cut(judged, LONGEST_VERDICT),
        *further,
    )


def _shorten_commands(recordings: Sequence[Kept], width: int) -> list[str]:
    shortened = shorten_commands([recording.command for recording in recordings], width)
    return [
        command or text.cut(_command(recording), width)
        for command, recording in zip(shortened, recordings, strict=True)
    ]


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
        ("verdict", format_verdict(recording.verdict)),
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
            "verdict": None if recording.verdict is None else asdict(recording.verdict),
        }
        for recording in recordings
    ]
    return json.dumps({"schema": SCHEMA, "runs": listed}, indent=2) + "\n"


def _total_size(recordings: Sequence[Kept]) -> str:
    return f"{format_bytes(sum(recording.size for recording in recordings))} on the disk"


def _command(recording: Kept) -> str:
    if not recording.command:
        return "GPUs and host" if recording.kind == WATCH else UNKNOWN
    return text.line(shlex.join(recording.command))


def _format_time(moment: float | None) -> str:
    return UNKNOWN if moment is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(moment))


def _format_duration(recording: Kept) -> str:
    end = time.time() if recording.alive else recording.ended
    if recording.started is None or end is None:
        return UNKNOWN
    return format_seconds(max(0.0, end - recording.started))
