"""The tables of a step's fields: bytes of its records, the reader's dtypes, the documentation."""

from __future__ import annotations

import inspect
import os
from math import isnan, nan
from pathlib import Path

import pytest
from mgpu_probes.inprocess import layout
from mgpu_probes.inprocess.blackbox import Writer
from mgpu_probes.inprocess.device_clock import DeviceStep
from mgpu_probes.inprocess.step_record import (
    BODY,
    DEVICE_BODY,
    pack_clamped,
    pack_device_step,
)

from mgpu_doctor.recording.records import DEVICE_DTYPE, HISTORY_DTYPE, STEP_DTYPE

DOCS = Path(__file__).parents[2] / "docs/black-box.md"
HEADER = "| offset | type | field |\n|---|---|---|\n"
TYPES = {"Q": "u64", "q": "i64", "I": "u32", "H": "u16", "h": "i16", "f": "f32"}


def as_type(code: str) -> str:
    if code == "4x":
        return "4 bytes"
    return f"{code[:-1]} × {TYPES[code[-1]]}" if code[:-1] else TYPES[code]


def table(fields: tuple[layout.Field, ...]) -> str:
    rows = zip(layout.offsets_of(fields), fields, strict=True)
    return HEADER + "".join(
        f"| {at} | {as_type(field.code)} | {field.meaning} |\n" for at, field in rows
    )


@pytest.mark.parametrize(
    ("section", "fields"),
    [
        ("### Step record (128 bytes)\n\n", layout.STEP_FIELDS),
        ("### Record of device times (88 bytes)\n\n", layout.DEVICE_FIELDS),
    ],
)
def test_the_table_of_the_documentation_follows_from_the_fields(
    section: str, fields: tuple[layout.Field, ...]
) -> None:
    """`MGPU_DOCTOR_TEST_RECORD=1` writes it anew."""
    before, rest = DOCS.read_text(encoding="utf-8").split(section)
    if os.environ.get("MGPU_DOCTOR_TEST_RECORD"):
        after = rest[rest.index("\n\n") + 1 :]
        DOCS.write_text(before + section + table(fields) + after, encoding="utf-8")
        return
    assert rest.startswith(table(fields) + "\n")


def test_the_bytes_of_a_record_are_those_of_version_1() -> None:
    assert layout.STEP.format == "=QqqII10fIIffIHHfQhH4xQI"
    assert layout.STEP_SIZE == 128
    assert [field[1] for field in (STEP_DTYPE.fields or {}).values()] == [
        *(0, 8, 16, 24, 28, 32, 72, 76, 80, 84, 88, 92, 94, 96, 100, 108, 110, 116),
    ]
    assert HISTORY_DTYPE.fields is not None
    assert HISTORY_DTYPE.fields["micro_batches"][1] == 112


def test_the_bytes_of_device_times_are_those_of_version_1_3() -> None:
    assert layout.DEVICE.format == "=QQq10ffffI4xI"
    assert layout.DEVICE_SIZE == 88
    assert [field[1] for field in (DEVICE_DTYPE.fields or {}).values()] == [
        0,
        8,
        16,
        24,
        64,
        68,
        72,
        76,
    ]


def test_device_times_that_do_not_fit_are_clamped() -> None:
    step = DeviceStep(-1, 2**70, (10**50, *[5] * 9), 10**60, -1)
    body = DEVICE_BODY.unpack(pack_device_step(3, step))
    assert body[:3] == (3, 0, 2**63 - 1)
    assert 3.4e38 < body[3] < 3.5e38
    assert 3.4e38 < body[13] < 3.5e38
    assert isnan(body[14])


def test_the_writer_takes_the_fields_of_the_table() -> None:
    given = [name for name in inspect.signature(Writer.step).parameters if name[0] != "_"]
    assert ("seq", *given[1:]) == STEP_DTYPE.names


def test_clamping_changes_nothing_that_fits() -> None:
    times, counts = (1, 5, 4, 3, 2), (1, 2, 0.25, 0.5, 7, 8, 9, 0.75, 10, 11, 12, 13)
    packed = BODY.pack(*times, *(0.5,) * 10, *counts)
    assert pack_clamped((*times, (0.5,) * 10, *counts)) == packed


def test_what_does_not_fit_is_clamped() -> None:
    counts = (0, 0, -1e300, 0.0, 0, 0, 0, 0.0, 0, -9, 2**20, 0)
    times = (1, -(2**70), -1, -1, 2**40)
    body = BODY.unpack(pack_clamped((*times, (1e300, nan), *counts)))
    assert body[1:5] == (-(2**63 - 1), 0, 0, 2**32 - 1)
    assert 3.4e38 < body[5] < 3.5e38
    assert all(map(isnan, body[6:15]))
    assert body[17] < -3.4e38
    assert body[-3:-1] == (-1, 2**16 - 1)
