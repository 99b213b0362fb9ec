"""Malformed JSON in a recording is counted or rejected in one sentence."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from mgpu_probes.outside.untrusted_files import within_budget

from mgpu_doctor.case.captured_console import TRACEBACK_LIMIT, read_streams, shortened
from mgpu_doctor.case.model import Unexamined
from mgpu_doctor.case.recording_case import NotARecording, load_recording
from mgpu_doctor.case.untrusted_json import MOST_LINE, Lines, number, read_lines, read_object
from mgpu_doctor.recording.layout import INFO, SCHEMA
from mgpu_doctor.recording.live_recordings import read_object as read_part


def whole_number(line: bytes) -> int | None:
    return int(line) if line.strip().isdigit() else None


@pytest.mark.parametrize(
    ("raw", "facts", "bad"),
    [
        (b"", (), 0),
        (b"1\n2\n", (1, 2), 0),
        (b"1\n\n  \n2", (1, 2), 0),
        (b"1\nx\n2\n", (1, 2), 1),
        (b"1\nx", (1,), 0),
        (b"1\n" + b"2" * (MOST_LINE + 1) + b"\n3\n", (1, 3), 1),
        (b"1\n" + b" " * (MOST_LINE - 1) + b"2\n3\n", (1, 2, 3), 0),
    ],
)
def test_bad_lines_are_counted(
    tmp_path: Path, raw: bytes, facts: tuple[int, ...], bad: int
) -> None:
    (tmp_path / "lines").write_bytes(raw)
    assert read_lines(tmp_path / "lines", whole_number, root=tmp_path) == Lines(facts, bad)


@pytest.mark.parametrize(
    ("most", "facts"),
    [(20, (1, 2, 3, 4, 5, 6)), (7, (2, 4, 6)), (1, (6,)), (12, (1, 2, 3, 4, 5, 6))],
)
def test_of_too_many_lines_some_are_read_up_to_the_newest(
    tmp_path: Path, most: int, facts: tuple[int, ...]
) -> None:
    (tmp_path / "lines").write_bytes(b"1\n2\n3\n4\n5\n6\n")
    lines = read_lines(tmp_path / "lines", whole_number, root=tmp_path, most=most)
    assert lines.facts == facts


def test_no_file_has_no_lines(tmp_path: Path) -> None:
    assert read_lines(tmp_path / "lines", whole_number, root=tmp_path) == Lines()


@pytest.mark.parametrize(
    ("value", "real"),
    [
        (1.5, 1.5),
        (2, 2.0),
        (float("nan"), None),
        (float("-inf"), None),
        (10**400, None),
        (True, None),
        ("1", None),
        (None, None),
    ],
)
def test_numbers_are_finite(value: object, real: float | None) -> None:
    assert number(value) == real


@pytest.mark.parametrize("raw", [b"", b"[1]", b"3", b"null", b"{", b"\xff{}"])
def test_what_is_no_object_is_refused(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / INFO).write_bytes(raw)
    with pytest.raises(ValueError):  # noqa: PT011 - the parser's own words
        read_object(tmp_path / INFO, root=tmp_path)
    with pytest.raises(NotARecording):
        load_recording(tmp_path)


@pytest.mark.parametrize("schema", [None, 7, "other/9"])
def test_a_recording_of_another_format_says_so(tmp_path: Path, schema: object) -> None:
    (tmp_path / INFO).write_text(json.dumps({"schema": schema, "probe": False}))
    assert INFO in {gap.probe for gap in load_recording(tmp_path).unexamined}
    (tmp_path / INFO).write_text(json.dumps({"schema": SCHEMA, "probe": False}))
    assert INFO not in {gap.probe for gap in load_recording(tmp_path).unexamined}


def test_a_long_traceback_keeps_both_ends() -> None:
    assert shortened("x" * TRACEBACK_LIMIT) == "x" * TRACEBACK_LIMIT
    long = "first" + "x" * TRACEBACK_LIMIT + "last"
    cut = shortened(long)
    assert len(cut) <= TRACEBACK_LIMIT
    assert cut.startswith("first")
    assert cut.endswith("last")


def test_many_names_of_one_file_add_little_to_the_budget(tmp_path: Path) -> None:
    """A file of a megabyte may have thousands of names: what it contains would fill the memory."""
    values, lines = b'{"a":[' + b"[]," * 300_000 + b"[]]}", b"ab\n" * 600_000
    for at in range(16):
        host = tmp_path / f"hosts/n{at}"
        (host / "console").mkdir(parents=True)
        for name, content in ((INFO, values), ("console/stdout.log", lines)):
            if at:
                os.link(tmp_path / "hosts/n0" / name, host / name)
            else:
                (host / name).write_bytes(content)
    gaps: list[Unexamined] = []
    with within_budget():
        read = [read_part(tmp_path, f"hosts/n{at}/{INFO}") for at in range(16)]
    assert 1 <= sum(map(bool, read)) < 4
    assert 1 <= len(read_streams(tmp_path, unexamined=gaps)) < 4
    assert [gap.probe for gap in gaps] == ["console log"]
