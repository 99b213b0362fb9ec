"""Writes black boxes with the real writer, and damages them as a test needs."""

from __future__ import annotations

import struct
import zlib
from math import nan
from pathlib import Path

import numpy as np
from mgpu_probes.inprocess import layout
from mgpu_probes.inprocess.blackbox import Writer
from mgpu_probes.inprocess.device_clock import DeviceStep

from mgpu_doctor.recording.box import STEP_DTYPE

SECOND = 1_000_000_000
PHASES = (0.25, nan, 0.5, *[nan] * 7)


def write_steps(writer: Writer, count: int, *, first: int = 0, spacing_ns: int = SECOND) -> None:
    """Records `count` steps of `spacing_ns` wall time each, one after the other."""
    for number in range(first, first + count):
        writer.step(
            (number + 1) * spacing_ns,
            spacing_ns,
            number,
            0,
            PHASES,
            32,
            0,
            2.5,
            0.0,
            number,
            2,
            1,
            0.125,
            1 << 20,
            -1,
            0,
        )


def write_device_times(writer: Writer, *steps: int, wall_ns: int = SECOND // 2) -> None:
    """Records device times of the steps with these sequence numbers: 0.25 s forward, the rest
    wait."""
    phases = [0] * len(layout.PHASES)
    phases[layout.FORWARD] = SECOND // 4
    phases[layout.WAIT] = wall_ns - SECOND // 4
    for step in steps:
        writer.device_step(DeviceStep(step, wall_ns, tuple(phases), 1_000_000, 3_000_000))


def finished(folder: Path, steps: int = 20) -> Path:
    """Writes a complete box with steps, an event, process metadata and last words; its path."""
    writer = Writer.open(folder, rank=1, local_rank=1, world_size=2)
    writer.birth({"framework": "torch"})
    writer.words[layout.NOW_SITE // 8] = writer.site("all_reduce train.py:87")
    writer.words[layout.NOW_PHASE // 8] = layout.WAIT | 19 << 8
    writer.words[layout.NOW_SINCE // 8] = 19 * SECOND
    writer.words[layout.NOW_SEQUENCE // 8] = 38
    write_steps(writer, steps)
    write_device_times(writer, *range(2, steps, 4))
    writer.event(layout.SAVED, 3 * SECOND, 3, SECOND // 2, 1.5, "model.pt")
    writer.state(layout.FAILED)
    writer.last_words({"type": "ValueError", "message": "bad loss"})
    writer.leave(1)
    writer.close()
    return Path(writer.path)


def overwrite(path: Path, offset: int, raw: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(raw)


def set_word(path: Path, offset: int, value: int) -> None:
    overwrite(path, offset, struct.pack("=Q", value))


GEOMETRY_AT = {
    name: 16 + 4 * index
    for index, name in enumerate(
        (
            "header",
            "birth",
            "birth_slot",
            "strings",
            "strings_size",
            "steps",
            "step_capacity",
            "events",
            "event_capacity",
            "history",
            "history_capacity",
            "words",
            "words_size",
        )
    )
}
"""Offsets of the header's fields that locate all other areas."""


def set_geometry(path: Path, name: str, value: int) -> None:
    overwrite(path, GEOMETRY_AT[name], struct.pack("=I", value))


def sound_records(*changes: dict[str, object], dtype: np.dtype[np.void] = STEP_DTYPE) -> bytes:
    """Records with right CRCs."""
    end = dtype.itemsize - 4
    made = b""
    for number, change in enumerate(changes, 1):
        record = np.zeros(1, dtype)
        record["seq"] = number
        for name, value in change.items():
            record[name] = value
        body = bytearray(record.tobytes())
        body[end:] = struct.pack("=I", zlib.crc32(body[:end]))
        made += body
    return made
